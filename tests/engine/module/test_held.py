"""Held: whatever a module's attributes hold is put back in place, and what cannot be is named."""

import io
import random
import threading
from collections import Counter, OrderedDict, deque
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fl_lightning.engine.module.state import ModuleState


class Thing:
    def __init__(self) -> None:
        self.number, self.inner = 1, [1]


class Slots:
    __slots__ = ("empty", "number")

    def __init__(self) -> None:
        self.number = 1


class Module(nn.Module):
    def __init__(self, thing: Any) -> None:
        super().__init__()
        self.net, self.thing = nn.Linear(2, 2), thing


def set_array(array: Any) -> None:
    array[0] = 5


TOLD: dict[str, list[str]] = {  # of an object's attributes, numbers that change alone; tensors are put back untold
    "tensor": [],
    "hidden layer": [],
    "new attribute": [],
    "object": ["Module.thing.number"],
}
CHANGES: dict[str, tuple[Any, Any, Any]] = {  # make it, change it, look at it
    "list": (lambda: [1, [2]], lambda each: each[1].append(3), repr),
    "dict": (lambda: {"a": {"b": 1}}, lambda each: each["a"].update(b=2), repr),
    "a renamed key": (lambda: {"a": "value"}, lambda each: each.update(b=each.pop("a")), repr),
    "ordered": (lambda: OrderedDict(a=1, b=2), lambda each: each.popitem(), repr),
    "counter": (lambda: Counter("ab"), lambda each: each.update("a"), repr),
    "deque": (lambda: deque([1, 2], maxlen=2), lambda each: each.append(3), repr),
    "set": (lambda: {1}, lambda each: each.add(2), repr),
    "bytes": (lambda: bytearray(b"ab"), set_array, repr),
    "tuple": (lambda: ([1], 2), lambda each: each[0].append(2), repr),
    "partial": (lambda: partial(max, [1]), lambda each: each.args[0].append(2), lambda each: each()),
    "keywords": (lambda: partial(max, key=len), lambda each: each.keywords.update(key=abs), lambda each: each.keywords),
    "array": (lambda: np.zeros(2), set_array, lambda each: each.tolist()),
    "tensor": (lambda: [torch.zeros(2)], lambda each: each[0].add_(1), lambda each: each[0].tolist()),
    "object": (Thing, lambda each: setattr(each, "number", 2), lambda each: each.number),
    "in an object": (Thing, lambda each: each.inner.append(2), lambda each: each.inner),
    "new attribute": (Thing, lambda each: setattr(each, "new", 2), lambda each: vars(each)),
    "slots": (Slots, lambda each: setattr(each, "number", 2), lambda each: each.number),
    "empty slot": (Slots, lambda each: setattr(each, "empty", 2), lambda each: hasattr(each, "empty")),
    "torch": (torch.Generator, lambda each: torch.rand(1, generator=each), lambda each: each.get_state().tolist()),
    "NumPy": (lambda: np.random.default_rng(1), lambda each: each.random(), lambda each: str(each.bit_generator.state)),
    "old NumPy": (lambda: np.random.RandomState(1), lambda each: each.rand(), lambda each: str(each.get_state())),
    "Python": (lambda: random.Random(1), lambda each: each.random(), lambda each: each.getstate()),
    "hidden layer": (
        lambda: [nn.BatchNorm1d(2)],
        lambda each: each[0](torch.randn(3, 2)),
        lambda each: each[0].running_mean.tolist(),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_changes_is_put_back_in_place(name: str) -> None:
    make, change, look = CHANGES[name]
    module = Module(make())
    state, thing, before = ModuleState(module), module.thing, look(module.thing)
    before = before.copy() if isinstance(before, list | dict) else before
    assert not state.is_changed()
    change(module.thing)
    assert look(module.thing) != before
    assert state.is_changed()
    names = state.restore()
    assert module.thing is thing
    assert look(thing) == before
    assert names == TOLD.get(name, ["Module.thing"])
    assert not state.is_changed()


@pytest.mark.parametrize(
    "thing",
    [
        *(iter([1]), (i for i in range(3)), io.StringIO(), [Thing(), map(str, [1])]),
        *(pd.DataFrame({"a": [1]}), np.ma.masked_array([1, 2]), np.array([1, None]), threading.local()),
    ],
    ids=["iterator", "generator", "file", "inside", "data frame", "masked array", "array of objects", "local"],
)
def test_what_cannot_be_put_back_is_left_alone(thing: Any) -> None:
    """Nothing that such an attribute leads to is touched; other attributes that lead to the same object are."""
    module = Module(thing)
    module.other = [1]  # type: ignore[assignment]
    state = ModuleState(module)
    module.other.append(2)  # type: ignore[operator]
    if isinstance(thing, list):
        thing[0].number = 2
    assert state.restore() == ["Module.other"]
    assert module.other == [1]
    assert not isinstance(thing, list) or thing[0].number == 2


def test_a_class_of_a_file_whose_name_begins_like_a_frameworks_is_followed() -> None:
    """``logging_utils`` is no part of ``logging``."""
    own = type("Meter", (), {"__module__": "logging_utils"})()
    own.count = 0
    module = Module(own)
    state = ModuleState(module)
    own.count = 1
    assert state.restore() == ["Module.thing.count"]
    assert own.count == 0


@pytest.mark.parametrize("lock", [threading.Lock(), threading.RLock()])
def test_what_lies_beside_a_lock_is_put_back(lock: Any) -> None:
    """A lock keeps nothing from client to client."""
    module = Module([lock, [1]])
    state = ModuleState(module)
    module.thing[1].append(2)  # type: ignore[index, union-attr]
    assert state.restore() == ["Module.thing"]
    assert module.thing == [lock, [1]]


def test_what_the_first_step_sets_once_is_put_back_untold() -> None:
    """As a model of transformers sets the type of its problem, from the labels."""
    config = Thing()
    config.problem = None
    module = Module(config)
    state = ModuleState(module)
    config.problem = "single_label_classification"
    assert state.restore() == []
    assert config.problem is None


def test_the_owner_of_a_module_is_not_followed() -> None:
    module = Module([])

    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.client, self.rounds = module, 0

    owner = Owner()
    module.thing.append(owner)  # type: ignore[operator, union-attr]
    state = ModuleState(module)
    owner.rounds = 1
    assert not state.is_changed()
    assert state.restore() == []
    assert owner.rounds == 1
