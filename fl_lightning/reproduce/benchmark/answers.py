"""Answers: which rules beat FedAvg on each problem, in one family of tests, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fl_lightning.report.numbers import fixed
from fl_lightning.report.statistics import LEVEL
from fl_lightning.reproduce.benchmark.chance import searches_of, share_as_small, smallest_p
from fl_lightning.reproduce.benchmark.compare import points
from fl_lightning.reproduce.benchmark.gains import winners
from fl_lightning.reproduce.benchmark.problems import Problem
from fl_lightning.reproduce.benchmark.search import BUDGETS, search_of


@dataclass(frozen=True, eq=False)
class Answer:
    """Holds what a problem's searches answer.

    Attributes:
        problem: the problem.
        once, twice: the gains of all methods in the problem's rounds, and in twice as many.
        p: for each candidate, the corrected p value in the problem's rounds.
    """

    problem: Problem
    once: pd.DataFrame
    twice: pd.DataFrame
    p: Mapping[str, float]

    @cached_property
    def winners(self) -> list[str]:
        """The candidates clearly better than FedAvg and not clearly below the best of them, the cheapest first."""
        better = [method for method in self.p if self.p[method] < LEVEL and self.once["gain"][method] > 0]
        return sorted(winners(self.problem.tests_at(1), self.problem.measure, better), key=self.cost)

    @property
    def searches(self) -> int:
        """How many searches the problem has."""
        return search_of(self.problem.tests).nunique()

    def cost(self, method: str) -> tuple[int, float, float]:
        """Order methods by what they need beside FedAvg, what they send, and what they gain."""
        sent = self.once["up"][method] + self.once["down"][method]
        return len(self.problem.needs(method)), round(sent, 1), -self.once["gain"][method]

    def price(self, method: str) -> list[str]:
        """Name what a method needs beside FedAvg, and what it sends beside it."""
        sent = {"uploads": self.once["up"][method], "downloads": self.once["down"][method]}
        more = [f"{fixed(times, 1)} × the {what}" for what, times in sent.items() if round(times, 1) > 1]
        return [*self.problem.needs(method), *more]

    def gain(self, method: str) -> str:
        """Write a method's gain in the problem's rounds; with a star if it was tested and is clear."""
        star = "\\*" if self.p.get(method, 1) < LEVEL else ""
        return points(self.once["gain"][method], self.once["half"][method]) + star

    def gain_at_twice(self, method: str) -> str:
        """Write a method's gain at twice the rounds."""
        return points(self.twice["gain"][method], self.twice["half"][method])

    def close(self, best: str) -> list[str]:
        """Name the methods not tested, above FedAvg by their interval and not clearly below the best method."""
        above = self.once.index[(self.once["gain"] > self.once["half"]) & ~self.once.index.isin(list(self.p))]
        tests = self.problem.tests_at(1)
        return [method for method in above if len(winners(tests, self.problem.measure, [best, method])) > 1]


def answers_of(problems: Sequence[Problem], generator: np.random.Generator) -> tuple[list[Answer], str]:
    """Test the candidates in the problems' rounds, corrected for all tests of all problems.

    Args:
        problems: the problems.
        generator: generator of the tables with shuffled names.

    Returns:
        The answers, and how many of the tables with shuffled names that did not serve the correction have a clear gain.
    """
    measured = [searches_of(problem) for problem in problems]
    smallest = smallest_p(measured, generator)
    answers = []
    for problem, searches in zip(problems, measured, strict=True):
        once, twice = (problem.gains_at(budget) for budget in BUDGETS)
        p = {}
        for at, raw in zip(searches.candidates().tolist(), searches.p_values().tolist(), strict=True):
            p[searches.methods[at]] = share_as_small(raw, smallest)
        answers.append(Answer(problem, once, twice, p))
    wrong = sum(share_as_small(p, smallest) < LEVEL for p in smallest_p(measured, generator))
    return answers, f"{wrong:,} of {len(smallest):,}"
