"""declares, stands: tell whether a class attribute about methods still holds for a subclass."""

from __future__ import annotations

from collections.abc import Iterable


def declares(thing: object, flag: str, methods: Iterable[str]) -> bool:
    """Tell whether a class attribute is true, and no later subclass has overridden a method that it describes.

    Args:
        thing: an object.
        flag: name of the attribute.
        methods: names of the methods that the attribute describes; all are defined in some class of ``thing``.

    Example:
        >>> from fl_lightning.engine.rules.declared import declares
        >>> class Rule:
        ...     pure = True
        ...     def step(self): ...
        >>> class Other(Rule):
        ...     def step(self): ...
        >>> declares(Rule(), "pure", ["step"]), declares(Other(), "pure", ["step"])
        (True, False)
    """
    return bool(getattr(thing, flag)) and stands(thing, flag, methods)


def stands(thing: object, flag: str, methods: Iterable[str]) -> bool:
    """Tell whether a class attribute describes methods: no later subclass than the one that sets it overrides one.

    The arguments are those of :func:`declares`.
    """
    mro = type(thing).__mro__

    def place_of(name: str) -> int:
        """Return the place, in ``mro``, of the last subclass that defines a name."""
        return next(place for place, cls in enumerate(mro) if name in vars(cls))

    return all(place_of(flag) <= place_of(method) for method in methods)
