"""Arguments that came after a release, declared beside them, so that finished runs are recognised. Imports no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Constructor = TypeVar("Constructor", bound=Callable[..., None])
DECLARED = "came_later"  # the attribute of a constructor that holds the declaration


def later(**as_before: Any) -> Callable[[Constructor], Constructor]:
    """Declare arguments of a constructor that came after a release, each with the value that does as before.

    A run is told from others by all arguments of its classes, and a run of that release lacks these: with the declared
    value it is the same run, with any other value another one.

    >>> class Rule:
    ...     @later(power=1.0)
    ...     def __init__(self, mu: float, power: float = 1.0) -> None: ...
    >>> later_arguments(Rule)
    {'power': 1.0}

    Args:
        as_before: the values by the names of the arguments; they are also the defaults.
    """

    def declare(constructor: Constructor) -> Constructor:
        setattr(constructor, DECLARED, getattr(constructor, DECLARED, {}) | as_before)
        return constructor

    return declare


def later_arguments(cls: type) -> dict[str, Any]:
    """Return what the constructors of a class, those of its base classes included, declare by :func:`later`.

    An argument that several of these constructors name is that of the first one.
    """
    found: dict[str, Any] = {}
    named: set[str] = set()
    for base in cls.__mro__:
        constructor = vars(base).get("__init__")
        if inspect.isfunction(constructor):
            for name, value in getattr(constructor, DECLARED, {}).items():
                if name not in named:
                    found[name] = value
            named |= set(inspect.signature(constructor).parameters)
    return found
