"""Statistics before training: what each site tells of its data, and the settings that follow for all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.sites.events import Message
from fl_lightning.engine.sites.messages import one_line, pack, unpack_plain
from fl_lightning.errors import ConfigurationError, TrainingError
from fl_lightning.files import whole

KIND = "statistics"  # of a message
SMALLEST = 5  # smallest number of examples that is told
BYTE = 255  # of a byte, the value that stands for 1
LARGEST = 2**53  # largest whole number that a site may tell
LONGEST = 200  # largest number of characters of a name
MOST = 10_000  # largest number of columns, or of classes
ROUNDING = 1e-14  # of a mean: a smaller deviation comes from the rounding of equal values
SLACK = 1e-9  # by how much sums may contradict one another, since they are rounded

Class = str | int


@dataclass(frozen=True)
class Statistics:
    """Holds what a site tells of the examples on which its clients train.

    Attributes:
        size: number of examples.
        classes: the classes, in the order of their numbers; None where they have no names, or are unknown.
        counts: number of examples by class; None for a count that is not told; empty for data without classes.
        names: names of the columns, in order; empty for the channels of images, whose values are in [0, 1].
        values: number of values of each column or channel.
        sums: sum of each column or channel.
        squares: sum of the squared distances of each column or channel from the site's own mean.
    """

    size: int
    classes: Sequence[Class] | None
    counts: Sequence[int | None]
    names: Sequence[str]
    values: Sequence[int]
    sums: Sequence[float]
    squares: Sequence[float]


@dataclass(frozen=True)
class Together:
    """Holds the statistics of all sites' data, as if they lay in one place.

    Attributes:
        classes: all classes, in sorted order; None where they have no names, or are unknown.
        num_classes: C, the number of classes; 0 for data without classes.
        counts: number of examples by class; None for a class of which a site has not told its count.
        names: names of the columns; empty for channels.
        mean: mean of each column or channel.
        std: standard deviation of each column or channel over all values; 1 where all are equal.
        size: number of examples.
    """

    classes: Sequence[Class] | None
    num_classes: int
    counts: Sequence[int | None]
    names: Sequence[str]
    mean: Sequence[float]
    std: Sequence[float]
    size: int


def statistics_of(data: FederatedData, clients: Sequence[int], smallest: int = SMALLEST) -> Statistics:
    """Count and sum the examples on which some clients train.

    Args:
        data: the data module, set up.
        clients: numbers of the clients in the data module.
        smallest: smallest number of examples that is told. A class of fewer is not counted; nor, where it would follow
            from the number of all examples, is the next larger one.

    Raises:
        ConfigurationError: there are fewer examples than ``smallest`` in all.
    """
    size = int(data.sizes[list(clients)].sum())
    if size < max(1, smallest):
        raise ConfigurationError(
            f"expected {max(1, smallest)} training examples at least for statistics (network.smallest), got {size}: "
            "with fewer, sums tell single values"
        )
    by_client = data.class_counts()
    counts = [] if by_client is None else by_client[list(clients)].sum(0).tolist()
    names: Any = getattr(data, "class_names", None) or None
    classes: list[Class] | None = None
    if names is not None:
        classes = list(map(_class_name, names))
    columns: tuple[str, ...] = ()
    sums = Sums()
    for client in clients:
        raw = data.raw_inputs(client)
        if raw is not None:
            columns = raw.names
            for part in raw.parts:
                sums = sums.joined(Sums.of(part))
    return Statistics(size, classes, told_counts(counts, smallest), columns, sums.values, sums.sums, sums.squares)


def _class_name(name: Any) -> Class:
    """Return a class's name as it is told: a whole number stays one."""
    return name if type(name) is int else str(name)


def told_counts(counts: Sequence[int], smallest: int) -> list[int | None]:
    """Return numbers of examples by class, without those that must not be known.

    >>> told_counts([40, 3, 9, 12], smallest=5)
    [40, None, None, 12]
    >>> told_counts([40, 9], smallest=5)
    [40, 9]
    """
    told: list[int | None] = []
    for count in counts:
        told.append(count if count >= smallest else None)
    if told.count(None) == 1 and len(told) > 1:
        known = [(count, number) for number, count in enumerate(told) if count is not None]
        told[min(known)[1]] = None
    return told


@dataclass(frozen=True)
class Sums:
    """Holds numbers of values, sums and squared distances from the mean, each by column, of some examples."""

    values: Sequence[int] = ()
    sums: Sequence[float] = ()
    squares: Sequence[float] = ()

    @classmethod
    def of(cls, part: Tensor) -> Sums:
        """Sum float64 (n, F), or uint8 images (n, C, H, W), whose sums are exact, as multiples of 1/255."""
        if part.dtype != torch.uint8:
            means = part.mean(0)
            count = len(part)
            sums = [math.fsum(column.tolist()) for column in part.T]
            squares = [math.fsum(((column - mean) ** 2).tolist()) for column, mean in zip(part.T, means, strict=True)]
            return cls([count] * part.shape[1], sums, squares)
        count = part.numel() // part.shape[1]
        sums, squares = [], []
        for channel in part.unbind(1):
            whole_values = channel.flatten().long()
            total = int(whole_values.sum())
            of_squares = int((whole_values**2).sum())
            sums.append(total / BYTE)
            squares.append((count * of_squares - total**2) / (count * BYTE**2))
        return cls([count] * part.shape[1], sums, squares)

    def joined(self, other: Sums) -> Sums:
        """Return the sums of both examples; the distances are then those from the common mean."""
        if not self.values:
            return other
        values, sums, squares = [], [], []
        for column, (count, more) in enumerate(zip(self.values, other.values, strict=True)):
            values.append(count + more)
            sums.append(self.sums[column] + other.sums[column])
            between = 0.0
            if count and more:
                apart = other.sums[column] / more - self.sums[column] / count
                between = apart**2 * count * more / (count + more)
            squares.append(self.squares[column] + other.squares[column] + between)
        return Sums(values, sums, squares)


def combine(told: Mapping[str, Statistics]) -> Together:
    """Join what the sites have told.

    Args:
        told: each site's statistics, by its name.

    Raises:
        ConfigurationError: the sites' data have other columns or channels, or classes of several types, which the
            message names.
    """
    first, *others = told
    for site in others:
        theirs = _shape(told[site])
        for what, value in _shape(told[first]).items():
            if theirs[what] != value:
                raise ConfigurationError(
                    f"expected all sites to have the same {what}, got {_short(value)} at {first} and "
                    f"{_short(theirs[what])} at {site}: make them alike"
                )
    sums = Sums()
    for statistics in told.values():
        if statistics.values:
            sums = sums.joined(Sums(statistics.values, statistics.sums, statistics.squares))
    means = [total / count for total, count in zip(sums.sums, sums.values, strict=True)]
    stds = []
    for squares, count, mean in zip(sums.squares, sums.values, means, strict=True):
        std = math.sqrt(squares / count)
        stds.append(1.0 if std <= ROUNDING * abs(mean) else std)
    classes: Sequence[Class] | None = None
    if told[first].classes is not None:
        classes = sorted({name for statistics in told.values() for name in statistics.classes or ()})
    counts = _joined_counts(list(told.values()), classes)
    size = sum(statistics.size for statistics in told.values())
    return Together(classes, len(counts), counts, told[first].names, means, stds, size)


def _joined_counts(told: Sequence[Statistics], classes: Sequence[Class] | None) -> list[int | None]:
    """Add the numbers of examples by class; None for a class of which a site has not told its number."""
    joined: dict[Any, int | None] = dict.fromkeys(classes or (), 0)
    for statistics in told:
        own = statistics.classes
        if own is None:
            own = range(len(statistics.counts))
        for name, count in zip(own, statistics.counts, strict=True):
            before = joined.get(name, 0)
            joined[name] = None if count is None or before is None else before + count
    return list(joined.values())


def _shape(told: Statistics) -> dict[str, Any]:
    """Return what must be alike at all sites, by its name in a message."""
    types = {type(name).__name__ for name in told.classes or ()}
    return {
        "columns": list(told.names),
        "number of columns or channels": len(told.values),
        "type of classes": sorted(types),
    }


def settings_of(data: FederatedData, together: Together) -> dict[str, Any]:
    """Return the arguments of a data module that follow from the statistics of all sites' data.

    Args:
        data: the data module; its class says by ``from_statistics`` which of ``mean``, ``std``, ``classes`` and
            ``num_classes`` it takes.
        together: the statistics.
    """
    known = {"mean": list(together.mean), "std": list(together.std), "num_classes": together.num_classes}
    known["classes"] = list(together.classes or ())
    return {name: known[name] for name in data.from_statistics if known[name]}


def write_statistics(path: Path, data: FederatedData, told: Mapping[str, Statistics], together: Together) -> None:
    """Write a config that all machines pass beside their own: ``--config own.yaml --config statistics.yaml``.

    Comments say what the sites have told. Names of sites and classes have been checked: they are printable.

    Args:
        path: the file.
        data: the data module; see :func:`settings_of`.
        told: each site's statistics, by its name; empty where their sum alone is known.
        together: the statistics of all sites' data.
    """
    lines = ["# Statistics of the data of all sites, of the examples on which clients train. Pass this file after the"]
    lines.append("# config, at the server and at all sites: --config own.yaml --config this.yaml")
    lines += [f"# {site}: {statistics.size} training examples" for site, statistics in told.items()]
    lines.append(f"# all: {together.size} training examples")
    classes = together.classes if together.classes is not None else range(together.num_classes)
    for name, count in zip(classes, together.counts, strict=True):
        lines.append(f"# class {name}: {'not told by all sites' if count is None else count}{_lacking(name, told)}")
    names = together.names or [f"channel {number}" for number in range(len(together.mean))]
    for name, mean, std in zip(names, together.mean, together.std, strict=True):
        lines.append(f"# {name}: mean {mean!r}, standard deviation {std!r}")
    settings = settings_of(data, together)
    body = yaml.safe_dump({"data": {"init_args": settings}}, sort_keys=False, allow_unicode=True) if settings else ""
    with whole(path) as part:
        part.write_text("\n".join(lines) + "\n" + body, encoding="utf-8")


def _lacking(name: Class, told: Mapping[str, Statistics]) -> str:
    """Name the sites that do not know a class; nothing if all do, or the classes have no names."""
    sites = [site for site, own in told.items() if own.classes is not None and name not in own.classes]
    return f"; unknown at {', '.join(sites)}" if sites else ""


def pack_statistics(told: Statistics) -> Message:
    """Write what a site tells of its data."""
    return pack({"kind": KIND, **asdict(told)})


def unpack_statistics(message: Message) -> Statistics:
    """Read what a site tells of its data.

    Raises:
        TrainingError: the message is another one, or its numbers contradict one another.
    """
    plain = unpack_plain(message)
    if plain.pop("kind", None) != KIND:
        raise TrainingError("expected the statistics of a site, got another message")
    try:
        told = Statistics(**plain)
        _check(told)
    except (TypeError, ValueError) as error:
        raise TrainingError(f"expected the statistics of a site, got others: {one_line(str(error))}") from error
    return told


def _check(told: Statistics) -> None:
    """Refuse what cannot be the statistics of examples.

    Raises:
        TypeError: they are of other types.
        ValueError: they contradict one another.
    """
    classes = [] if told.classes is None else told.classes
    for values in (classes, told.counts, told.names, told.values, told.sums, told.squares):
        if not isinstance(values, list) or len(values) > MOST:
            raise TypeError(f"expected lists of {MOST} entries at most")
    known = [count for count in told.counts if count is not None]
    if not all(type(count) is int and 0 <= count <= LARGEST for count in (told.size, *known, *told.values)):
        raise TypeError("expected whole numbers from 0 on")
    if not all(type(value) is float and math.isfinite(value) for value in (*told.sums, *told.squares)):
        raise TypeError("expected finite sums")
    if not told.size:
        raise ValueError("no example")
    check_names(classes, told.names)
    if told.classes is not None and len(told.counts) not in (0, len(classes)):
        raise ValueError(f"{len(classes)} classes and {len(told.counts)} counts")
    if sum(known) > told.size or (told.counts and len(known) == len(told.counts) and sum(known) != told.size):
        raise ValueError(f"{told.size} examples, and {sum(known)} of all classes")
    if not len(told.values) == len(told.sums) == len(told.squares) or len(told.names) not in (0, len(told.values)):
        raise ValueError("other numbers of columns than of sums")
    for count, total, squares in zip(told.values, told.sums, told.squares, strict=True):
        _check_sums(told, count, total, squares)


def check_names(classes: Sequence[Any], names: Sequence[Any]) -> None:
    """Refuse what are no names of classes and columns, which a terminal may show.

    Raises:
        ValueError: they are not.
    """
    for kind in (classes, names):
        if len(set(kind)) < len(kind):
            raise ValueError("one name twice")
    for name in (*classes, *names):
        if type(name) is int and name in classes:
            continue
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST:
            raise ValueError(f"expected printable names of {LONGEST} characters at most")
    if len({type(name) for name in classes}) > 1:
        raise ValueError("expected classes of one type")


def _check_sums(told: Statistics, count: int, total: float, squares: float) -> None:
    """Refuse sums that no ``count`` values have: values of channels are in [0, 1]."""
    if count < 1 or squares < 0 or (told.names and count != told.size) or count % told.size:
        raise ValueError(f"{told.size} examples, and {count} values with the squares {squares}")
    mean = total / count
    most = max(0.0, count * mean * (1 - mean))  # of values in [0, 1], if each is 0 or 1
    if not told.names and (not -SLACK <= mean <= 1 + SLACK or squares > most + SLACK * count):
        raise ValueError(f"values with the mean {mean} and the squares {squares}, expected some in [0, 1]")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
