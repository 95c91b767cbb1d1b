"""Chance: tests of the rules that are best on validation images, and what a table with shuffled names would show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.report.statistics import FEWEST_SEEDS
from fl_lightning.reproduce.benchmark.gains import BASELINE, by_search
from fl_lightning.reproduce.benchmark.problems import Problem
from fl_lightning.reproduce.benchmark.search import METHOD

CANDIDATES = 3  # methods of a problem that are tested: the best by the validation images of the searches
SHUFFLES = 2000  # tables with shuffled names


@dataclass(frozen=True, eq=False)
class Searches:
    """Holds what the S searches of a problem measured in its rounds.

    Attributes:
        methods: the names of the M methods, FedAvg's first.
        tests: (S, M) mean of the tests of what a search chose; nan where a test is missing.
        validation: (S, M) what it chose by; nan where nothing was trained to the end.
    """

    methods: Sequence[str]
    tests: NDArray[np.float64]
    validation: NDArray[np.float64]

    def candidates(self) -> list[int]:
        """Return the columns of the methods that are best on the validation images, on average, the best first."""
        count = (~np.isnan(self.validation)).sum(0)
        level = np.where(count > 0, np.nansum(self.validation, axis=0) / np.maximum(count, 1), np.nan)
        known = [at for at in np.argsort(-level, kind="stable").tolist() if at and not np.isnan(level[at])]
        return known[:CANDIDATES]

    def p_values(self) -> NDArray[np.float64]:
        """Return each candidate's p: of a paired two-sided t test against FedAvg; nan for fewer than three searches.

        They are those of :func:`two_sided_p`, of all candidates at once, because thousands of tables are tested.
        """
        apart = self.tests[:, self.candidates()] - self.tests[:, :1]
        count = (~np.isnan(apart)).sum(0)
        mean = np.nansum(apart, axis=0) / np.maximum(count, 1)
        variance = np.nansum((apart - mean) ** 2, axis=0) / np.maximum(count - 1, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(mean == 0, 0.0, np.abs(mean) / np.sqrt(variance / np.maximum(count, 1)))
        return np.where(count < FEWEST_SEEDS, np.nan, 2 * stats.t.sf(ratio, count - 1))

    def shuffled(self, generator: np.random.Generator) -> Searches:
        """Exchange the methods' names within each search: each name takes another's validation and tests."""
        order = generator.permuted(np.tile(np.arange(len(self.methods)), (len(self.tests), 1)), axis=1)
        tests, validation = (np.take_along_axis(values, order, axis=1) for values in (self.tests, self.validation))
        return replace(self, tests=tests, validation=validation)


def searches_of(problem: Problem) -> Searches:
    """Collect what a problem's searches measured."""
    tests = by_search(problem.tests_at(1), problem.measure)
    methods = [BASELINE, *(str(method) for method in tests if method != BASELINE)]
    validation = problem.final.groupby(["seed", METHOD])[problem.measure].max().unstack()
    validation = validation.reindex(index=tests.index, columns=methods)
    return Searches(methods, tests[methods].to_numpy(float), validation.to_numpy(float))


def smallest_p(problems: Sequence[Searches], generator: np.random.Generator) -> NDArray[np.float64]:
    """Return the smallest p of each of many tables in which the names are shuffled."""
    smallest = np.empty(SHUFFLES)
    for at in range(SHUFFLES):
        smallest[at] = _smallest([problem.shuffled(generator) for problem in problems])
    return smallest


def _smallest(problems: Sequence[Searches]) -> float:
    return float(np.nan_to_num(np.concatenate([problem.p_values() for problem in problems]), nan=1.0).min())


def share_as_small(p: float, smallest: NDArray[np.float64]) -> float:
    """Correct a p value: return the share of the tables with shuffled names that have one as small somewhere.

    Westfall & Young, 1993: that share allows for the number of tests. It also allows for the choice of the methods that
    are tested, because the tables with shuffled names make it anew. nan stays nan.

    >>> share_as_small(0.02, np.array([0.5, 0.01, 0.2]))  # this table counts as one of four
    0.5
    """
    if np.isnan(p):
        return p
    return float((1 + (smallest <= p).sum()) / (1 + len(smallest)))
