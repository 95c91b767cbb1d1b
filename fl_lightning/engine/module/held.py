"""Held: all that a module's attributes hold, remembered, and put back in place."""

from __future__ import annotations

import io
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

PLAIN: tuple[type, ...] = (
    type(None),
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    np.generic,
    np.dtype,
    Enum,
    PurePath,
    re.Pattern,
)
PLAIN += (date, time, timedelta, torch.device, torch.dtype, weakref.ref, Parameter, Signature)
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
OF_THE_RUN = (Trainer, LightningDataModule, Logger, PythonLogger, Callback, Dataset, DataLoader)
LEAVES = PLAIN + CODE + OF_THE_RUN  # objects that do not change, or do not belong to the module
FRAMEWORKS = ("lightning", "jsonargparse", "argparse", "logging", "torch._dynamo")  # whose objects belong to the run
OF_PYTHON = ("builtins", "types", "typing", "torch", "torch._C")  # whose other types than iterators hold no state
UNKNOWN = (io.IOBase,)  # objects with attributes, and with a state beside them
MISSING = object()  # in place of a slot that is empty

# Objects with a state of their own: how to read the state as a value that can be compared, and how to write it.
Stateful = tuple[Any, Callable[[Any], Any], Callable[[Any, Any], None]]
STATEFUL: list[Stateful] = [
    (
        torch.Generator,
        lambda each: each.get_state().numpy().tobytes(),
        lambda each, state: each.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
    ),
    (
        np.random.Generator,
        lambda each: pickle.dumps(each.bit_generator.state),
        lambda each, state: setattr(each.bit_generator, "state", pickle.loads(state)),
    ),
    (
        np.random.RandomState,
        lambda each: pickle.dumps(each.get_state()),
        lambda each, state: each.set_state(pickle.loads(state)),
    ),
    (random.Random, lambda each: each.getstate(), lambda each, state: each.setstate(state)),
    (
        np.ndarray,
        lambda each: each.tobytes(),
        lambda each, state: each.__setitem__(..., np.frombuffer(state, each.dtype).reshape(each.shape)),
    ),
    (bytearray, bytes, lambda each, state: each.__setitem__(slice(None), state)),
]


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
        # Each with what is remembered, and with the attribute that leads there; "" for private ones and metrics.
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any], str]] = []
        self._others: list[tuple[Any, list[Any], str]] = []  # lists, deques and sets
        self._stateful: list[tuple[Any, Any, Stateful, str]] = []
        self._seen = {id(self), *known}
        parts = list(module.modules())
        self._seen.update(map(id, parts))
        for part in parts:
            attributes, kind = vars(part), type(part).__name__
            counts = not isinstance(part, Metric | MetricCollection)
            self._dicts.append((attributes, dict(attributes), f"{kind}." if counts else ""))
            for name, value in attributes.items():
                if _is_leaf(value):
                    continue
                if name in REGISTRIES and (not value or name in TENSORS):
                    self._dicts.append((value, dict(value), ""))
                elif (odd := self._follow(value, f"{kind}.{name}" if counts and name[0] != "_" else "")) is not None:
                    self.beyond[f"{kind}.{name}"] = type(odd).__name__
        self._present = self._entries()

    def _follow(self, root: Any, owner: str) -> Any:
        """Remember all that an object holds; return the first object that cannot be put back, or None."""
        kept: list[list[Any]] = [self._dicts, self._others, self._stateful, self.tensors]
        sizes, waiting, added = [len(each) for each in kept], [root], list[int]()
        while waiting:
            each = waiting.pop()
            if _is_leaf(each) or id(each) in self._seen or self._is_of_the_run(each):
                continue
            self._seen.add(id(each))
            added.append(id(each))
            if (content := self._remember(each, owner)) is None:
                for found, size in zip(kept, sizes, strict=True):
                    del found[size:]
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
        if (how := next((how for how in STATEFUL if isinstance(each, how[0])), None)) is not None:
            self._stateful.append((each, how[1](each), how, owner))
            return []
        if isinstance(each, partial):
            return [each.func, *each.args, *each.keywords.values()]
        held = list(each) if isinstance(each, dict | list | deque | set | tuple | frozenset) else None
        if held is not None and not isinstance(each, tuple | frozenset):
            self._others.append((each, list(held), owner))  # of a dict, the keys
        dicts = [each] if isinstance(each, dict) else []
        if isinstance(attributes := getattr(each, "__dict__", None), dict) and not isinstance(each, UNKNOWN):
            dicts.append(attributes)
        for found in dicts:
            self._dicts.append((found, dict(found), owner))
            held = [*(held or ()), *found.values()]
        if slots := [name for kind in type(each).__mro__ for name in _names(vars(kind).get("__slots__", ()))]:
            values = _Slots(each, slots)
            self._others.append((values, list(values), owner))
            held = [*(held or ()), *(value for value in values if value is not MISSING)]
        if held is None and type(each).__module__ in OF_PYTHON and not isinstance(each, Iterator):
            return []
        return held

    def _entries(self) -> list[Any]:
        """All objects that the remembered containers hold now."""
        values = chain.from_iterable(dict.values(each) for each, _, _ in self._dicts)
        return [*values, *chain.from_iterable(each for each, _, _ in self._others)]

    def is_changed(self) -> bool:
        """Tell whether anything but a tensor differs from what was remembered."""
        if _differ(self._entries(), self._present):
            return True
        return any(how[1](each) != state for each, state, how, _ in self._stateful)

    def restore(self) -> list[str]:
        """Put back whatever has changed, but for tensors.

        Returns:
            Names of the public attributes that led to a change: numbers that were set, and objects that have changed.
        """
        if not self.is_changed():
            return []
        names: list[str] = []
        for found, content, owner in self._dicts:
            if _differ(found, content) or _differ(dict.values(found), content.values()):
                names += _numbers(found, content, owner) if owner.endswith(".") else [owner]
                kind = OrderedDict if isinstance(found, OrderedDict) else dict
                kind.clear(found)
                kind.update(found, content)
        for other, entries, owner in self._others:
            if not isinstance(other, dict) and _differ(list(other), entries):
                names.append(owner)
                _put(other, entries)
        for each, state, how, owner in self._stateful:
            if how[1](each) != state:
                names.append(owner)
                how[2](each, state)
        self._present = self._entries()
        return [name for name in dict.fromkeys(names) if name]


@cache
def _is_leaf_type(kind: type[Any]) -> bool:
    of_a_framework = kind.__module__.startswith(FRAMEWORKS) and not issubclass(kind, dict | list | nn.Module)
    return of_a_framework or issubclass(kind, LEAVES)


def _is_leaf(each: Any) -> bool:
    kind: Any = type(each)
    return _is_leaf_type(kind) or isinstance(each, Trainer)  # what stands for a Trainer says so, too


class _Slots:
    """The values in the slots of an object."""

    def __init__(self, thing: Any, names: list[str]) -> None:
        self._thing, self._names = thing, names

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self._thing, name, MISSING) for name in self._names)

    def put(self, values: list[Any]) -> None:
        for name, value in zip(self._names, values, strict=True):
            if value is not MISSING:
                object.__setattr__(self._thing, name, value)
            elif hasattr(self._thing, name):
                object.__delattr__(self._thing, name)


def _differ(one: Collection[Any], other: Collection[Any]) -> bool:
    """Tell whether two collections hold different objects."""
    return len(one) != len(other) or any(map(is_not, one, other))


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    names = [slots] if isinstance(slots, str) else slots
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _put(container: Any, entries: list[Any]) -> None:
    if isinstance(container, _Slots):
        container.put(entries)
    else:
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(entries)


def _numbers(attributes: dict[str, Any], before: dict[str, Any], owner: str) -> list[str]:
    """Name the public attributes that held another number before."""
    return [
        owner + name
        for name, value in attributes.items()
        if name[0] != "_" and _is_number(value) and _is_number(before.get(name)) and value != before[name]
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
