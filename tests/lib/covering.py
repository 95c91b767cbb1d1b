"""A few rows of a table that have among them whatever its rows have two by two."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import Any, TypeVar

import pytest

Item = TypeVar("Item", bound=Hashable)


def covering(rows: Sequence[Item], traits: Callable[[Item], Iterable[str]], together: int = 2) -> list[Item]:
    """Choose rows, always the first with most that is new, until every set of traits of one row is in a chosen row.

    Args:
        rows: the table.
        traits: names what is special about a row.
        together: number of traits in a set.
    """
    sets = {row: set(combinations(sorted(set(traits(row))), together)) for row in rows}
    missing, chosen = set().union(*sets.values()), list[Item]()
    while missing:
        chosen.append(max(rows, key=lambda row: len(sets[row] & missing)))
        missing -= sets[chosen[-1]]
    return chosen


def every(rows: Sequence[Item], quick: Iterable[Item]) -> Any:
    """Parametrize a test by ``row``: all rows, of which those that are not ``quick`` are slow tests."""
    chosen = set(quick)
    marks = [() if row in chosen else pytest.mark.slow for row in rows]
    return pytest.mark.parametrize("row", [pytest.param(r, marks=m) for r, m in zip(rows, marks, strict=True)], ids=str)
