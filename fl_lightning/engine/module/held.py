"""Held: all that a module's attributes hold, remembered, and put back in place."""

from __future__ import annotations

import pickle
import random
import re
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date, time, timedelta
from enum import Enum
from functools import cache, partial
from inspect import Parameter, Signature
from itertools import chain
from logging import Logger as PythonLogger
from operator import is_not
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import Metric, MetricCollection

#: The dicts in which a module registers its parameters, buffers, submodules and hooks.
REGISTRIES = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))
TENSORS = ("_parameters", "_buffers", "_modules")  # those that hold no other objects than tensors and modules

PLAIN: tuple[type, ...] = (type(None), int, float, complex, str, bytes, range, slice, np.generic, np.dtype, Enum)
PLAIN += (PurePath, re.Pattern, date, time, timedelta, torch.device, torch.dtype, weakref.ref, Parameter, Signature)
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
OF_THE_RUN = (Trainer, LightningDataModule, Logger, PythonLogger, Callback, Dataset, DataLoader)
LEAVES = PLAIN + CODE + OF_THE_RUN  # objects that do not change, or do not belong to the module
FRAMEWORKS = ("lightning", "jsonargparse", "argparse", "logging", "torch._dynamo")  # whose objects belong to the run
OF_PYTHON = ("builtins", "types", "typing", "torch", "torch._C")  # whose other types than iterators hold no state
CONTAINERS = (OrderedDict, dict, list, deque, set, tuple, frozenset)
MISSING = object()  # in place of a slot that is empty

# Objects with a state of their own: how to read the state as a value that can be compared, and how to write it. A
# subclass may keep more beside it, and is not among them.
STATEFUL: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    torch.Generator: (
        lambda each: each.get_state().numpy().tobytes(),
        lambda each, state: each.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
    ),
    np.random.Generator: (
        lambda each: pickle.dumps(each.bit_generator.state),
        lambda each, state: setattr(each.bit_generator, "state", pickle.loads(state)),
    ),
    np.random.RandomState: (
        lambda each: pickle.dumps(each.get_state()),
        lambda each, state: each.set_state(pickle.loads(state)),
    ),
    random.Random: (lambda each: each.getstate(), lambda each, state: each.setstate(state)),
    np.ndarray: (
        lambda each: each.tobytes(),
        lambda each, state: each.__setitem__(..., np.frombuffer(state, each.dtype).reshape(each.shape)),
    ),
    bytearray: (bytes, lambda each, state: each.__setitem__(slice(None), state)),
}


class Held:
    """Remembers the attributes of a module and all that they hold, and puts back in place whatever has changed.

    Followed are containers and the attributes of objects; remembered are also arrays, random number generators and
    tensors. An attribute that leads to something else, such as a file, a lock or a running iterator, is left alone from
    there on.

    Args:
        module: the module, which is remembered as it is now.
        known: ids of tensors that are remembered elsewhere.

    Attributes:
        tensors: the tensors that the attributes hold, but for the known ones.
        beyond: names of the attributes that cannot be put back, such as ``MyModule.reader``, each with the type of the
            object that forbids it.
    """

    def __init__(self, module: nn.Module, known: Iterable[int]) -> None:
        self._module = module
        self.tensors: list[Tensor] = []
        self.beyond: dict[str, str] = {}
        # Each container with its copy, and the attribute that leads there: "" for private ones and metrics.
        self._kept: list[tuple[Any, Any, str]] = []
        parts = list(module.modules())
        self._seen = {id(self), *known, *map(id, parts)}
        for part in parts:
            attributes, kind = vars(part), type(part).__name__
            counts = not isinstance(part, Metric | MetricCollection)
            self._kept.append((attributes, dict(attributes), f"{kind}." if counts else ""))
            for name, value in attributes.items():
                if _is_leaf(value):
                    continue
                if name in TENSORS and not isinstance(value, dict):
                    continue  # of TorchScript, which registers no others later
                if name in REGISTRIES and (not value or name in TENSORS):
                    self._kept.append((value, dict(value), ""))
                elif (odd := self._follow(value, f"{kind}.{name}" if counts and name[0] != "_" else "")) is not None:
                    self.beyond[f"{kind}.{name}"] = type(odd).__name__
        self._views = [_entries(container) for container, _, _ in self._kept]  # show what the containers hold later
        self._present = self._now()

    def _follow(self, root: Any, owner: str) -> Any:
        """Remember all that an object holds; return the first object that cannot be put back, or None."""
        kept, tensors, waiting, added = len(self._kept), len(self.tensors), [root], list[int]()
        while waiting:
            each = waiting.pop()
            if _is_leaf(each) or id(each) in self._seen or self._is_of_the_run(each):
                continue
            self._seen.add(id(each))
            added.append(id(each))
            if (content := self._remember(each, owner)) is None:
                del self._kept[kept:], self.tensors[tensors:]
                self._seen.difference_update(added)  # another attribute may lead to the same objects
                return each
            waiting += content
        return None

    def _is_of_the_run(self, each: Any) -> bool:
        """Tell whether an object is a module that holds this one, such as the orchestrator."""
        return isinstance(each, nn.Module) and any(part is self._module for part in each.modules())

    def _remember(self, each: Any, owner: str) -> list[Any] | None:
        """Remember one object; return the objects that it holds, or None if it cannot be put back."""
        if isinstance(each, Tensor):
            self.tensors.append(each)
            return []
        if isinstance(each, partial):
            return [each.func, *each.args, *each.keywords.values()]
        cls: Any = type(each)
        objects = cls is np.ndarray and each.dtype.hasobject  # whose bytes are addresses
        if cls in STATEFUL and not objects:
            state = _State(each, *STATEFUL[cls])
            self._kept.append((state, list(state), owner))
            return []
        found: list[Any] = [each] if isinstance(each, CONTAINERS) else []
        found += [each.keys()] if isinstance(each, dict) else []  # after the dict, which puts its keys back
        if isinstance(attributes := getattr(each, "__dict__", None), dict):
            found.append(attributes)
        if slots := _slots(cls):
            found.append(_Slots(each, slots))
        if not found or _keeps_more(cls):
            stateless = cls.__module__ in OF_PYTHON and not isinstance(each, Iterator)
            return [] if stateless else None
        self._kept += [(one, dict(one) if isinstance(one, dict) else list(one), owner) for one in found]
        return [*chain.from_iterable(map(_entries, found))]

    def _now(self) -> list[Any]:
        """All objects that the remembered containers hold now."""
        return list(chain.from_iterable(self._views))

    def is_changed(self) -> bool:
        """Tell whether anything but a tensor differs from what was remembered."""
        return _differ(self._now(), self._present)

    def restore(self) -> list[str]:
        """Put back whatever has changed, but for tensors.

        Returns:
            Names of the public attributes that led to a change: numbers that were set, and objects that have changed.
        """
        if not self.is_changed():
            return []
        names: list[str] = []
        for container, before, owner in self._kept:
            of_a_dict = isinstance(container, dict)
            if _differ(container, before) or (of_a_dict and _differ(_entries(container), _entries(before))):
                names += _numbers(container, before, owner) if owner.endswith(".") else [owner]
                _put(container, before)
        self._present = self._now()
        return [name for name in dict.fromkeys(names) if name]


def of_a_framework(kind: type[Any]) -> bool:
    """Tell whether a class is one of those whose objects belong to the run."""
    return f"{kind.__module__}.".startswith(tuple(f"{name}." for name in FRAMEWORKS))


@cache
def _is_leaf_type(kind: type[Any]) -> bool:
    return issubclass(kind, LEAVES) or (of_a_framework(kind) and not issubclass(kind, dict | list | nn.Module))


@cache
def _keeps_more(kind: Any) -> bool:
    """Tell whether an object of a class takes more memory than its entries, attributes and slots: a state in C."""
    base = next((each for each in kind.__mro__ if each in CONTAINERS), object)
    references = len(_slots(kind)) + 2  # to the attributes, and to weak references
    return bool(kind.__basicsize__ > base.__basicsize__ + references * tuple.__itemsize__)


def _is_leaf(each: Any) -> bool:
    kind: Any = type(each)
    return _is_leaf_type(kind) or isinstance(each, Trainer)  # what stands for a Trainer says so, too


@cache
def _slots(kind: type[Any]) -> list[str]:
    """Name the slots of a class."""
    declared = [vars(each).get("__slots__", ()) for each in kind.__mro__]
    names = chain.from_iterable([each] if isinstance(each, str) else each for each in declared)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


class _Slots:
    """The values in the slots of an object, as a container."""

    def __init__(self, thing: Any, names: list[str]) -> None:
        self._thing, self._names = thing, names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self._thing, name, MISSING) for name in self._names)

    def put(self, values: list[Any]) -> None:
        for name, value in zip(self._names, values, strict=True):
            if value is not MISSING:
                object.__setattr__(self._thing, name, value)
            elif hasattr(self._thing, name):
                object.__delattr__(self._thing, name)


class _State:
    """The state of an object, as a container with one entry: the same object as long as the state is equal."""

    def __init__(self, thing: Any, read: Callable[[Any], Any], write: Callable[[Any, Any], None]) -> None:
        self._thing, self._read, self._write = thing, read, write
        self._state = read(thing)

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        now = self._read(self._thing)
        yield self._state if now == self._state else now

    def put(self, states: list[Any]) -> None:
        self._write(self._thing, *states)


def _entries(container: Any) -> Collection[Any]:
    """Show what a container holds: of a dict, the values."""
    return dict.values(container) if isinstance(container, dict) else container


def _differ(one: Collection[Any], other: Collection[Any]) -> bool:
    """Tell whether two collections hold different objects."""
    return len(one) != len(other) or any(map(is_not, one, other))


def _put(container: Any, before: Any) -> None:
    """Put back the entries that a container had before."""
    if isinstance(container, _Slots | _State):
        container.put(before)
    elif isinstance(container, dict):
        kind = OrderedDict if isinstance(container, OrderedDict) else dict
        kind.clear(container)
        kind.update(container, before)
    else:
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(before)


def _numbers(attributes: dict[str, Any], before: dict[str, Any], owner: str) -> list[str]:
    """Name the public attributes that held another number before."""
    return [
        owner + name
        for name, value in attributes.items()
        if name[0] != "_" and _is_number(value) and _is_number(before.get(name)) and value != before[name]
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
