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
SHUFFLES = 10_000  # tables with shuffled names


@dataclass(frozen=True, eq=False)
class Searches:
    """Holds what the S searches of a problem measured in its rounds.

    Attributes:
        methods: the names of the M methods, FedAvg's first.
        tests: (..., S, M) mean of the tests of what a search chose; nan where a test is missing.
        validation: (..., S, M) what it chose by; nan where nothing was trained to the end.
    """

    methods: Sequence[str]
    tests: NDArray[np.float64]
    validation: NDArray[np.float64]

    def candidates(self) -> NDArray[np.intp]:
        """Return the columns (..., C) of the methods that are best on the validation images, the best first."""
        return np.argsort(-self._levels(), axis=-1, kind="stable")[..., : min(CANDIDATES, len(self.methods) - 1)]

    def _levels(self) -> NDArray[np.float64]:
        """Return the methods' means (..., M) on the validation images; -inf for FedAvg, and for those without any."""
        count = (~np.isnan(self.validation)).sum(-2)
        levels = np.where(count > 0, np.nansum(self.validation, axis=-2) / np.maximum(count, 1), -np.inf)
        levels[..., 0] = -np.inf
        return levels

    def p_values(self) -> NDArray[np.float64]:
        """Return each candidate's p (..., C), of a paired two-sided t test against FedAvg.

        They are those of :func:`two_sided_p`, of all tables at once, because thousands are tested. nan for fewer than
        three searches, and for a method that no search validated.
        """
        candidates = self.candidates()
        apart = np.take_along_axis(self.tests, candidates[..., None, :], axis=-1) - self.tests[..., :1]
        count = (~np.isnan(apart)).sum(-2)
        mean = np.nansum(apart, axis=-2) / np.maximum(count, 1)
        variance = np.nansum((apart - mean[..., None, :]) ** 2, axis=-2) / np.maximum(count - 1, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(mean == 0, 0.0, np.abs(mean) / np.sqrt(variance / np.maximum(count, 1)))
        known = (count >= FEWEST_SEEDS) & np.isfinite(np.take_along_axis(self._levels(), candidates, axis=-1))
        return np.where(known, 2 * stats.t.sf(ratio, count - 1), np.nan)

    def shuffled(self, generator: np.random.Generator, tables: int) -> Searches:
        """Exchange the methods' names within each search, and return many such tables.

        Each name takes another's validation and tests, (T, S, M) for T tables.
        """
        order = generator.permuted(np.tile(np.arange(len(self.methods)), (tables, len(self.tests), 1)), axis=-1)
        tests, validation = (
            np.take_along_axis(values[None], order, axis=-1) for values in (self.tests, self.validation)
        )
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
    by_problem = []
    for problem in problems:
        p = problem.shuffled(generator, SHUFFLES).p_values()
        by_problem.append(np.nan_to_num(p, nan=1.0).min(axis=-1, initial=1.0))
    return np.array(np.min(by_problem, axis=0))


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
