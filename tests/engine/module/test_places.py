"""Places: where objects of each kind hold others, and that what they held can be put back there."""

import io
import random
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fl_lightning.engine.module.places import State, copy_of, differ, places, put, view


class Slot:
    __slots__ = ("left",)


class SlotAndAttribute(Slot):
    def __init__(self) -> None:
        self.left = 1
        self.right = 2


class Names(list[str]):
    def __init__(self) -> None:
        super().__init__(["a"])
        self.count = 1


class Draws(random.Random):
    pass


def contents(thing: Any) -> list[Any] | None:
    """What an object holds, place by place."""
    inside = places(thing)
    return None if inside is None else [list(view(place)) for place in inside]


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        ([1, 2], [[1, 2]]),
        ((1, 2), [[1, 2]]),
        (frozenset([1]), [[1]]),
        (deque([1]), [[1]]),
        ({"a": 1}, [[1], ["a"]]),  # values, then keys
        (OrderedDict(a=1), [[1], ["a"], []]),  # it has attributes, too
        (Counter("a"), [[1], ["a"], []]),
        (Names(), [["a"], [1]]),  # entries, then attributes
        (SlotAndAttribute(), [[2], [1]]),  # attributes, then slots
        (partial(max, 1, key=len), [[max], [1], [len]]),
        (object(), []),
    ],
)
def test_an_object_holds_its_entries_attributes_and_slots(thing: Any, expected: list[Any]) -> None:
    assert contents(thing) == expected


@pytest.mark.parametrize("thing", [io.StringIO(), iter([1]), Draws(1), np.array([None]), np.zeros(1).view(np.matrix)])
def test_an_object_that_may_hold_more_has_no_places(thing: Any) -> None:
    """A file and an iterator keep a state in C; a subclass may keep more than its base class."""
    assert places(thing) is None


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ([1, 2], lambda place: place.append(3)),
        (deque([1], maxlen=2), lambda place: place.append(3)),
        ({1}, lambda place: place.add(2)),
        ({"a": 1, "b": 2}, lambda place: place.pop("a")),
        (defaultdict(list, a=1), lambda place: place["b"]),
        (OrderedDict(a=1, b=2), lambda place: place.move_to_end("a")),
    ],
)
def test_a_container_gets_back_what_it_held(place: Any, change: Any) -> None:
    """In its order, as ``list`` tells it: of an ordered dict, the keys show that their order has changed."""
    inside = places(place) or [place]
    before = [copy_of(part) for part in inside]
    listed = list(place)

    def is_changed() -> bool:
        return any(differ(view(part), view(held)) for part, held in zip(inside, before, strict=True))

    assert not is_changed()
    change(place)
    assert is_changed()
    put(place, before[0])
    assert not is_changed()
    assert list(place) == listed


def test_a_state_is_the_same_object_as_long_as_it_is_equal() -> None:
    generator = torch.Generator().manual_seed(1)
    (state,) = places(generator) or []
    assert isinstance(state, State)
    before = copy_of(state)
    assert not differ(state, before)
    drawn = torch.rand(1, generator=generator)
    assert differ(state, before)
    put(state, before)
    assert not differ(state, before)
    assert torch.equal(torch.rand(1, generator=generator), drawn)
