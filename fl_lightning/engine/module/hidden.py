"""Search for what training changes beside parameters and buffers: attributes, globals, enclosing variables."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
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
    own_classes = dict[type, None]()  # a dict, for its order
    for part in module.modules():
        for base in type(part).__mro__:
            library = base.__module__.partition(".")[0]
            if library not in LIBRARIES:
                own_classes[base] = None
        for name, value in vars(part).items():
            if name not in TENSORS:
                yield f"{type(part).__name__}.{name}", value
    for name, parameter in module.named_parameters():
        yield f"an attribute of {name}", vars(parameter)
    for own_class in own_classes:
        for name, value in vars(own_class).items():
            yield f"{own_class.__name__}.{name}", value
            if isinstance(value, FunctionType):
                yield from _globals_of(value)
    for name, value in vars(data).items():
        yield f"{type(data).__name__}.{name}", value


def _globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function names; its enclosing variables are part of the function."""
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if not isinstance(value, type | ModuleType):
            yield f"{function.__module__}.{name}", value


def _names(code: CodeType) -> set[str]:
    """Return the names that a function's code looks up, those of the functions inside of it included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


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
