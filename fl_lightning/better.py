"""Which values of a metric are better: what a module, a torchmetrics object or a user says; a name tells nothing."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Collection, Iterable
from typing import Any, Literal

from fl_lightning.errors import ConfigurationError

Better = Literal["lower", "higher"]
VALUES: tuple[Better, Better] = ("lower", "higher")


def better_of(module: object, name: str, value: object = None) -> Better | None:
    """Tell which values of a logged metric are better, as the module says of its name, or else the logged object.

    >>> class Module:
    ...     lower_is_better = ("val/bce",)
    >>> better_of(Module(), "val/bce"), better_of(Module(), "val/loss")
    ('lower', None)

    Args:
        module: the module that logs the metric; it may name metrics in ``lower_is_better`` and ``higher_is_better``.
        name: the metric's name.
        value: the logged value: a torchmetrics object has a ``higher_is_better`` of its own.

    Returns:
        "lower" or "higher"; None where neither says it.

    Raises:
        ConfigurationError: both attributes of the module have the name.
    """
    lower, higher = (_names(module, f"{values}_is_better") for values in VALUES)
    return better_in(lower, higher).get(name) or _better_of_object(value)


def _names(module: object, attribute: str) -> Collection[str]:
    """Read an attribute that names metrics; a user's module may have another use for one, such as a bool."""
    names = getattr(module, attribute, ())
    if isinstance(names, str):
        return [names]
    return names if isinstance(names, list | tuple | set | frozenset) else ()


def _better_of_object(value: Any) -> Better | None:
    """Tell which values of a torchmetrics object are better; None for another object, or if its class does not say."""
    from torchmetrics import Metric  # here, because a report does without

    if not isinstance(value, Metric) or value.higher_is_better is None:
        return None
    cls = type(value)
    says: Any = next(base for base in cls.__mro__ if "higher_is_better" in vars(base))
    if says.compute is not cls.compute:  # what a subclass computes is no longer what its parent spoke of
        return None
    return "higher" if value.higher_is_better else "lower"


def better_in(lower_is_better: Iterable[str], higher_is_better: Iterable[str]) -> dict[str, Better]:
    """Return which values of metrics are better, by name.

    Args:
        lower_is_better: names of metrics.
        higher_is_better: names of other metrics.

    Raises:
        ConfigurationError: a name is in both.
    """
    lower: dict[str, Better] = dict.fromkeys(lower_is_better, "lower")
    higher: dict[str, Better] = dict.fromkeys(higher_is_better, "higher")
    if both := sorted(lower.keys() & higher.keys()):
        raise ConfigurationError(
            f"{', '.join(both)} cannot be in lower_is_better and in higher_is_better: leave out one of the two"
        )
    return lower | higher


def add_options(parser: ArgumentParser) -> None:
    """Add ``--lower_is_better`` and ``--higher_is_better``, lists of names for :func:`better_in`."""
    for values in VALUES:
        about = f"metrics of which {values} values are better, if their runs do not say so"
        parser.add_argument(
            f"--{values}_is_better", nargs="+", action="extend", default=[], metavar="METRIC", help=about
        )


def how_to_say(name: str) -> str:
    """Say how a user tells which values of a metric are better."""
    return f"give --lower_is_better {name} or --higher_is_better {name}"
