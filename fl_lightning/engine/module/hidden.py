"""Search for what training changes beside parameters and buffers: attributes, globals, enclosing variables."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, GeneratorType, ModuleType
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from torch import nn

from fl_lightning.engine.module.held import TENSORS

LIBRARIES = ("builtins", "lightning", "torch", "fl_lightning")  # whose classes remember no client
OF_THE_RUN = (Trainer, LightningModule, LightningDataModule, Logger, Callback)


def fingerprints(module: nn.Module, data: Any) -> dict[str, str]:
    """Hash whatever a module and the data could remember a client by, by its name.

    Args:
        module: the client module.
        data: the data module, whose attributes are hashed, too.

    Returns:
        A hash for each attribute of the module's parts, of their classes and of the data module, and for each global
        and enclosing variable that the classes' functions use; of the ``repr`` where an object cannot be pickled.
    """
    return {name: _fingerprint(value) for name, value in _places(module, data)}


def _places(module: nn.Module, data: Any) -> Iterator[tuple[str, Any]]:
    kinds = dict[type, None]()
    for part in module.modules():
        kind = type(part)
        kinds |= dict.fromkeys(each for each in kind.__mro__ if each.__module__.partition(".")[0] not in LIBRARIES)
        for name, value in vars(part).items():
            if name not in TENSORS:
                yield f"{kind.__name__}.{name}", value
    for name, parameter in module.named_parameters():
        yield f"an attribute of {name}", vars(parameter)
    for kind in kinds:
        for name, value in vars(kind).items():
            yield f"{kind.__name__}.{name}", value
            if isinstance(value, FunctionType):
                yield from _beside(value)
    for name, value in vars(data).items():
        yield f"{type(data).__name__}.{name}", value


def _beside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function names; its enclosing variables are part of the function."""
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if not isinstance(value, type | ModuleType):
            yield f"{function.__module__}.{name}", value


def _names(code: CodeType) -> Iterable[str]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names}.union(*map(_names, inner))


class _Pickler(pickle.Pickler):
    """Pickles what can be compared, not what can be loaded again."""

    def persistent_id(self, thing: Any) -> Any:
        if isinstance(thing, type | ModuleType):
            return repr(thing)
        return "of the run" if isinstance(thing, OF_THE_RUN) else None

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, FunctionType):
            enclosed = [cell.cell_contents for cell in thing.__closure__ or ()]
            return str, (thing.__qualname__,), (enclosed, thing.__defaults__, vars(thing))
        if isinstance(thing, GeneratorType):
            return str, (repr(thing),), thing.gi_frame and thing.gi_frame.f_locals
        if hasattr(thing, "cache_info"):
            return str, (repr(thing.cache_info()),)
        try:
            thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:  # an object that cannot be pickled
            return str, (repr(thing),)
        return NotImplemented


class _Digest:
    """A file that keeps a hash of what is written."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, content: Any) -> None:
        self.hash.update(content)


def _fingerprint(value: Any) -> str:
    digest = _Digest()
    try:
        _Pickler(digest, pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception:  # an object's own code may raise anything
        digest.write(repr(value).encode())
    return digest.hash.hexdigest()
