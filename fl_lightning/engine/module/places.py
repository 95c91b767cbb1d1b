"""Places: where an object holds other objects or a state, so that both can be looked at and put back.

A place is one of Python's containers, the ``__dict__`` of an object, or one of the two classes below, which look like
containers. Places are compared by the identity of what they hold: that is fast, and runs no code of the user.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial, singledispatch
from operator import is_not
from typing import Any

import numpy as np
import torch

OF_PYTHON = ("builtins", "types", "typing", "torch", "torch._C")  # whose other types than iterators hold no state
MISSING = object()  # in place of a slot that is empty


class Slots:
    """The values in the slots of an object, as a container."""

    def __init__(self, thing: Any, names: list[str]) -> None:
        self._thing = thing
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self._thing, name, MISSING) for name in self._names)

    def put(self, values: list[Any]) -> None:
        """Put back the values that the slots had before."""
        for name, value in zip(self._names, values, strict=True):
            if value is not MISSING:
                object.__setattr__(self._thing, name, value)
            elif hasattr(self._thing, name):
                object.__delattr__(self._thing, name)


class State:
    """The state of an object, as a container with one entry: the same object as long as the state is equal.

    Args:
        read: returns the state as a value that can be compared.
        write: gives the object a state that ``read`` has returned.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], Any]) -> None:
        self._read = read
        self._write = write
        self._state = read()

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        now = self._read()
        yield self._state if now == self._state else now

    def put(self, states: list[Any]) -> None:
        """Put back the state that the object had before."""
        (state,) = states
        self._write(state)


@singledispatch
def places(thing: Any) -> list[Any] | None:
    """Return the places in which an object holds what may change; None if it may hold more, which cannot be put back.

    An object of any class has its attributes and slots. The types that hold something else have a function each, below.
    """
    own = _attributes_and_slots(thing)
    kind: Any = type(thing)
    if own and not _keeps_more(kind):
        return own
    is_stateless = kind.__module__ in OF_PYTHON and not isinstance(thing, Iterator)
    return [] if is_stateless else None


@places.register(list)
@places.register(deque)
@places.register(set)
@places.register(tuple)  # neither this nor a frozenset changes, but what they hold may
@places.register(frozenset)
def _of_elements(thing: Any) -> list[Any] | None:
    kind: Any = type(thing)
    return None if _keeps_more(kind) else [thing, *_attributes_and_slots(thing)]


@places.register(dict)
@places.register(OrderedDict)
def _of_dict(thing: dict[Any, Any]) -> list[Any] | None:
    # The keys are looked at, too, but never put back: that is done with the dict, which comes first.
    return None if _keeps_more(type(thing)) else [thing, thing.keys(), *_attributes_and_slots(thing)]


@places.register(type(threading.Lock()))
@places.register(type(threading.RLock()))
def _of_lock(thing: Any) -> list[Any]:
    return []  # it is open or closed, and no client leaves it closed: the next one would wait without end


@places.register(partial)
def _of_partial(thing: partial[Any]) -> list[Any]:
    return [(thing.func,), thing.args, thing.keywords]


# Types with a state in C that can be read and written. A subclass may keep more beside it.


@places.register(torch.Generator)
def _of_torch_generator(thing: torch.Generator) -> list[Any] | None:
    def read() -> bytes:
        return thing.get_state().numpy().tobytes()

    def write(state: bytes) -> None:
        thing.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    return [State(read, write)] if type(thing) is torch.Generator else None


@places.register(np.random.Generator)
def _of_numpy_generator(thing: np.random.Generator) -> list[Any] | None:
    def read() -> bytes:
        return pickle.dumps(thing.bit_generator.state)  # a dict of arrays, which == compares entry by entry

    def write(state: bytes) -> None:
        thing.bit_generator.state = pickle.loads(state)

    return [State(read, write)] if type(thing) is np.random.Generator else None


@places.register(np.random.RandomState)
def _of_old_numpy_generator(thing: np.random.RandomState) -> list[Any] | None:
    def read() -> bytes:
        return pickle.dumps(thing.get_state())

    def write(state: bytes) -> None:
        thing.set_state(pickle.loads(state))

    return [State(read, write)] if type(thing) is np.random.RandomState else None


@places.register(random.Random)
def _of_python_generator(thing: random.Random) -> list[Any] | None:
    return [State(thing.getstate, thing.setstate)] if type(thing) is random.Random else None


@places.register(np.ndarray)
def _of_array(thing: np.ndarray[Any, Any]) -> list[Any] | None:
    def write(state: bytes) -> None:
        thing[...] = np.frombuffer(state, thing.dtype).reshape(thing.shape)

    if type(thing) is not np.ndarray or thing.dtype.hasobject:  # the bytes of objects are their addresses
        return None
    return [State(thing.tobytes, write)]


@places.register(bytearray)
def _of_bytes(thing: bytearray) -> list[Any] | None:
    def write(state: bytes) -> None:
        thing[:] = state

    return [State(partial(bytes, thing), write)] if type(thing) is bytearray else None


def _attributes_and_slots(thing: Any) -> list[Any]:
    """Return the places in which an object of any class holds values by name."""
    own: list[Any] = []
    attributes = getattr(thing, "__dict__", None)
    if isinstance(attributes, dict):
        own.append(attributes)
    kind: Any = type(thing)
    names = _slots(kind)
    if names:
        own.append(Slots(thing, names))
    return own


@cache
def _slots(kind: type[Any]) -> list[str]:
    """Name the slots of a class."""
    names: list[str] = []
    for base in kind.__mro__:
        declared = vars(base).get("__slots__", ())
        names += [declared] if isinstance(declared, str) else declared
    return [name for name in names if name not in ("__dict__", "__weakref__")]


@cache
def _keeps_more(kind: Any) -> bool:
    """Tell whether an object of a class takes more memory than its entries, attributes and slots: a state in C."""
    base = next(known for known in kind.__mro__ if known in places.registry)  # object, at the latest
    references = len(_slots(kind)) + 2  # to the attributes, and to weak references
    return bool(kind.__basicsize__ > base.__basicsize__ + references * tuple.__itemsize__)


def view(place: Any) -> Collection[Any]:
    """Show what a place holds, at any time: of a dict, the values."""
    return dict.values(place) if isinstance(place, dict) else place


def copy_of(place: Any) -> Any:
    """Return what a place holds now: a dict of a dict, else a list."""
    return dict(place) if isinstance(place, dict) else list(place)


def differ(now: Collection[Any], before: Collection[Any]) -> bool:
    """Tell whether two collections hold different objects."""
    return len(now) != len(before) or any(map(is_not, now, before))


def put(place: Any, before: Any) -> None:
    """Put back, in place, what a place held before; of a dict without the methods that a subclass may override."""
    match place:
        case Slots() | State():
            place.put(before)
        case OrderedDict():  # whose order the methods of dict would not keep
            OrderedDict.clear(place)
            OrderedDict.update(place, before)
        case dict():
            dict.clear(place)
            dict.update(place, before)
        case set():
            place.clear()
            place.update(before)
        case _:
            place.clear()
            place.extend(before)
