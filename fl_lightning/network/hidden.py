"""Hidden statistics: whole numbers that sites add up under masks, so that the server learns their sum alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fl_lightning.errors import ConfigurationError, TrainingError
from fl_lightning.network.statistics import MOST, ROUNDING, Class, Statistics, Together, check_names, told_counts

STEP = Fraction(1, 2**300)  # of a number that is summed
SLOT = 640  # bits of a number; a sum of numbers below 2^300 in size cannot overflow


@dataclass(frozen=True)
class Outline:
    """Says in the open which numbers a site adds: all but the numbers.

    Attributes:
        classes: the names of the classes, in order; none where they have no names.
        num_classes: C, the number of classes; 0 for data without classes.
        names: the names of the columns; empty for the channels of images.
        columns: F, the number of columns or channels.
    """

    classes: Sequence[Class]
    num_classes: int
    names: Sequence[str]
    columns: int

    def __post_init__(self) -> None:
        """Refuse what is no outline, from another machine.

        Raises:
            TypeError: a value has another type.
            ValueError: its values contradict one another.
        """
        if not isinstance(self.classes, list) or not isinstance(self.names, list):
            raise TypeError("expected lists of names")
        if not all(type(count) is int and 0 <= count <= MOST for count in (self.num_classes, self.columns)):
            raise TypeError(f"expected {MOST} classes and columns at most")
        check_names(self.classes, self.names)
        if len(self.classes) not in (0, self.num_classes) or len(self.names) not in (0, self.columns):
            raise ValueError("other numbers than names")

    @classmethod
    def of(cls, told: Statistics) -> Outline:
        """Return the outline of a site's statistics."""
        return cls(list(told.classes or ()), len(told.counts), list(told.names), len(told.values))

    @classmethod
    def joined(cls, outlines: dict[str, Outline]) -> Outline:
        """Return the outline of all sites, whose classes are those of any.

        Raises:
            ConfigurationError: the sites have other columns, or classes with names and without.
        """
        first, *others = outlines
        for site in others:
            here, there = ((outline.names, outline.columns) for outline in (outlines[first], outlines[site]))
            if here != there:
                raise ConfigurationError(
                    f"expected all sites to have the same columns, got {here} at {first} and {there} at {site}: make "
                    "them alike"
                )
        classes: set[Any] = {name for outline in outlines.values() for name in outline.classes}
        unnamed = [site for site, outline in outlines.items() if outline.num_classes and not outline.classes]
        if len({type(name) for name in classes}) > 1 or (classes and unnamed):
            raise ConfigurationError(
                f"expected all sites to have names of classes of one type, got {sorted(map(str, classes))}: make them "
                "alike"
            )
        num_classes = len(classes) or max(outline.num_classes for outline in outlines.values())
        return cls(sorted(classes), num_classes, outlines[first].names, outlines[first].columns)

    @property
    def size(self) -> int:
        """Number of bytes of a sum."""
        return (1 + self.num_classes + 3 * self.columns) * SLOT // 8

    def encode(self, told: Statistics) -> int:
        """Write a site's statistics as one whole number, of which a sum holds the sums of all.

        Raises:
            ConfigurationError: a number is too large.
        """
        own = told.classes or range(len(told.counts))
        counts = dict(zip(own, told.counts, strict=False))
        places = self.classes or range(self.num_classes)
        numbers: list[Fraction | int] = [told.size, *(counts.get(place) or 0 for place in places), *told.values]
        totals = [Fraction(total) for total in told.sums]
        numbers += totals
        for total, squares, count in zip(totals, told.squares, told.values, strict=True):
            numbers.append(Fraction(squares) + total**2 / count)  # about 0, which adds up
        words = [round(number / STEP) for number in numbers]
        if max(map(abs, words)) * STEP >= 2**300:
            raise ConfigurationError("expected statistics below 2^300 to hide, got larger ones: scale the columns down")
        return sum(word << SLOT * place for place, word in enumerate(words))

    def decode(self, total: int, smallest: int) -> Together:
        """Read the sum of all sites' statistics.

        Args:
            total: the sum, modulo 256^size.
            smallest: smallest number of examples of a class that is told.

        Raises:
            TrainingError: the numbers contradict one another: some site has sent others than its own.
        """
        numbers = []
        for _ in range(self.size * 8 // SLOT):
            word = total & (1 << SLOT) - 1
            word -= (word >> SLOT - 1) << SLOT  # its sign
            numbers.append(word * STEP)
            total = (total - word) >> SLOT
        size, rest = numbers[0], numbers[1:]
        counts, rest = rest[: self.num_classes], rest[self.num_classes :]
        values, sums, squares = (rest[place * self.columns :][: self.columns] for place in range(3))
        is_whole = all(number.denominator == 1 and number >= 0 for number in (size, *counts, *values))
        if not is_whole or size < 1 or sum(counts) not in (0, size) or min(values, default=1) < 1:
            raise TrainingError("the sum of the sites' statistics is none of examples: some site has sent others")
        mean, std = [], []
        for count, sum_, square in zip(values, sums, squares, strict=True):
            middle = sum_ / count
            variance = square / count - middle**2
            deviation = math.sqrt(max(float(variance), 0.0))
            mean.append(float(middle))
            std.append(1.0 if deviation <= ROUNDING * abs(middle) else deviation)
        told = told_counts([int(count) for count in counts], smallest)
        return Together(self.classes or None, self.num_classes, told, self.names, mean, std, int(size))
