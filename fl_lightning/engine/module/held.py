"""Held: all that a module's attributes hold, remembered, and put back in place."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from datetime import date, time, timedelta
from enum import Enum
from functools import cache
from inspect import Parameter, Signature
from itertools import chain
from logging import Logger as PythonLogger
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import Metric, MetricCollection

from fl_lightning.engine.module.places import copy_of, differ, places, put, view

TENSORS = ("_parameters", "_buffers", "_modules")  # the dicts in which a module registers tensors and modules
HOOKS = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict)).difference(TENSORS)

# Objects that do not change, code among them: what a function refers to is part of the program.
CONSTANTS: tuple[type, ...] = (type(None), int, float, complex, str, bytes, range, slice, np.generic, np.dtype, Enum)
CONSTANTS += (PurePath, re.Pattern, date, time, timedelta, torch.device, torch.dtype, weakref.ref, Parameter, Signature)
CONSTANTS += (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)

# Objects that belong to the run, not to the module: their classes, and the modules that define others.
OF_THE_RUN = (Trainer, LightningDataModule, Logger, PythonLogger, Callback, Dataset, DataLoader)
FRAMEWORKS = ("lightning", "jsonargparse", "argparse", "logging", "torch._dynamo")


class Entry(NamedTuple):
    """A place that is remembered; a tuple, because entries are read by the thousand after each client.

    Attributes:
        place: where an object holds other objects, as :func:`places` tells.
        before: a copy of what the place held.
        owner: name of the attribute that leads to the place, such as ``MyModule.history``, or of the module's class for
            the module's own attributes; None where a change is not told.
        counts: whether the place is the attributes of a module or of an object: a change of these is told number by
            number, because other values may be set once, by the first step, without being carried on.
    """

    place: Any
    before: Any
    owner: str | None
    counts: bool

    def is_changed(self) -> bool:
        """Tell whether the place holds something else than before."""
        if isinstance(self.place, dict):
            keys_differ = differ(self.place, self.before)
            return keys_differ or differ(dict.values(self.place), self.before.values())
        return differ(self.place, self.before)

    def names(self) -> list[str]:
        """Name the public attributes by which a change of the place is told."""
        if self.owner is None:
            return []
        if not self.counts:
            return [self.owner]
        names = []
        for name, value in self.place.items():
            old = self.before.get(name)
            if name[0] != "_" and _is_number(value) and _is_number(old) and value != old:
                names.append(f"{self.owner}.{name}")
        return names


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
    """

    def __init__(self, module: nn.Module, known: Iterable[int]) -> None:
        self._module = module
        self.tensors: list[Tensor] = []
        self._entries: list[Entry] = []
        parts = list(module.modules())
        self._seen = {id(self), *known, *map(id, parts)}
        for part in parts:
            self._remember_part(part)
        # One flat list, so that a client that has changed nothing costs one pass over it.
        self._views = [view(entry.place) for entry in self._entries]
        self._present = self._now()

    def _remember_part(self, part: nn.Module) -> None:
        """Remember the attributes of a module, but not those of the modules in it."""
        attributes = vars(part)
        kind = type(part).__name__
        is_told = not isinstance(part, Metric | MetricCollection)  # metrics count and collect: that is their work
        self._keep(attributes, kind if is_told else None, counts=True)
        for name, value in attributes.items():
            if _is_leaf(value):
                continue
            if name in TENSORS:
                if isinstance(value, dict):  # else of TorchScript, which registers no others later
                    self._keep(value)
            elif name in HOOKS and not value:
                self._keep(value)  # nothing to follow, in one entry: most modules have a dozen such dicts
            else:
                is_public = is_told and name[0] != "_"
                self._follow(value, f"{kind}.{name}" if is_public else None)

    def _keep(self, place: Any, owner: str | None = None, counts: bool = False) -> None:
        self._entries.append(Entry(place, copy_of(place), owner, counts))

    def _follow(self, root: Any, owner: str | None) -> None:
        """Remember all that an object holds, unless it leads to an object that cannot be put back.

        Then nothing is remembered of what leads there: another attribute may lead there, too.
        """
        found: list[tuple[Any, bool]] = []
        tensors: list[Tensor] = []
        seen: set[int] = set()
        waiting = [root]
        while waiting:
            thing = waiting.pop()
            if _is_leaf(thing) or id(thing) in self._seen or id(thing) in seen or self._is_owner(thing):
                continue
            seen.add(id(thing))
            if isinstance(thing, Tensor):
                tensors.append(thing)
                continue
            inside = places(thing)
            if inside is None:
                return
            for place in inside:
                found.append((place, place is getattr(thing, "__dict__", None)))
                waiting += view(place)
        for place, is_attributes in found:
            self._keep(place, owner, counts=is_attributes)
        self.tensors += tensors
        self._seen |= seen

    def _is_owner(self, thing: Any) -> bool:
        """Tell whether an object is a module that holds this one, such as the orchestrator."""
        return isinstance(thing, nn.Module) and any(part is self._module for part in thing.modules())

    def _now(self) -> list[Any]:
        """All objects that the remembered places hold now."""
        return list(chain.from_iterable(self._views))

    def is_changed(self) -> bool:
        """Tell whether anything but a tensor differs from what was remembered."""
        return differ(self._now(), self._present)

    def restore(self) -> list[str]:
        """Put back whatever has changed, but for tensors.

        Returns:
            Names of the public attributes that led to a change: numbers that were set, and objects that have changed.
        """
        if not self.is_changed():
            return []
        names: list[str] = []
        for entry in self._entries:
            if entry.is_changed():
                names += entry.names()
                put(entry.place, entry.before)
        self._present = self._now()
        return list(dict.fromkeys(names))


@cache
def _is_leaf_type(kind: type[Any]) -> bool:
    """Tell whether objects of a class are not followed: they do not change, or belong to the run."""
    if issubclass(kind, CONSTANTS + OF_THE_RUN):
        return True
    return _is_of_a_framework(kind) and not issubclass(kind, dict | list | nn.Module)


def _is_of_a_framework(kind: type[Any]) -> bool:
    """Tell whether a class is one of those whose objects belong to the run."""
    names = tuple(f"{name}." for name in FRAMEWORKS)
    return f"{kind.__module__}.".startswith(names)


def _is_leaf(thing: Any) -> bool:
    kind: Any = type(thing)
    return _is_leaf_type(kind) or isinstance(thing, Trainer)  # what stands for a Trainer says so, too


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
