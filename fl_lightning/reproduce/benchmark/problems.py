"""The results of a problem: the tests of all methods, and the settings that their searches kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fl_lightning.fit.configs import CONFIGS
from fl_lightning.reproduce.benchmark.gains import BASELINE, gains
from fl_lightning.reproduce.benchmark.search import BUDGET, METHOD, TRY, id_of, search_of
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment, Tuning
from fl_lightning.reproduce.outcome.numbers import CHANGED, RESULTS, read

EDITION = "fl-lightning-bench 2"  # the problems, their seeds, their search, and the form of the results
MEASURED = CONFIGS / "results"  # the results of the benchmark that come with the package


@dataclass(frozen=True, eq=False)
class Problem:
    """Holds the results of one problem.

    Attributes:
        experiment: the experiment.
        tests: its tests, see :func:`fl_lightning.reproduce.outcome.numbers.collect`.
        final: the runs of the searches that were trained to the end, judged by validation images.
    """

    experiment: Experiment
    tests: pd.DataFrame
    final: pd.DataFrame

    @property
    def name(self) -> str:
        """The problem's name, without the document's."""
        return problem_name(self.experiment)

    @property
    def measure(self) -> str:
        """The column by which methods are compared."""
        return self.experiment.measures[0]

    def of(self, searches: Collection[int]) -> Problem:
        """Return the problem with some of its searches alone."""
        tests, final = self.tests[search_of(self.tests).isin(searches)], self.final[self.final["seed"].isin(searches)]
        return Problem(self.experiment, tests, final)

    def tests_at(self, budget: int) -> pd.DataFrame:
        """Return the tests of one length, in the problem's rounds."""
        return self.tests[self.tests[BUDGET].eq(budget)]

    def gains_at(self, budget: int) -> pd.DataFrame:
        """Return the gains at one length, see :func:`gains`."""
        return gains(self.tests_at(budget), self.measure)

    def cell(self, method: str) -> Cell:
        """Return the cell of a method."""
        return next(cell for cell in self.experiment.cells if cell.labels[METHOD] == method)

    def needs(self, method: str) -> list[str]:
        """Name what a method needs beside FedAvg, apart from what it sends."""
        return list(self._tuning.needs.get(method, ()))

    def space(self, method: str) -> dict[str, Any]:
        """Return the options of a method that are drawn, with their distributions."""
        return {**self._tuning.every, **self._tuning.method[method]}

    def choices(self) -> pd.DataFrame:
        """Return a row for each method and search: its ``search``, what it chose, and the mean of its tests."""
        tests = self.tests_at(1)
        by_choice = tests.assign(search=search_of(tests)).groupby([METHOD, "search", TRY])
        return by_choice[self.measure].mean().reset_index()

    def chosen(self, method: str) -> list[str]:
        """Return the names of the settings that a method's searches chose."""
        choices = self.choices()
        return list(choices[choices[METHOD].eq(method)][TRY])

    @property
    def _tuning(self) -> Tuning:
        assert self.experiment.tuning is not None
        return self.experiment.tuning


def problem_name(experiment: Experiment) -> str:
    """Return a problem's name, without the document's."""
    return experiment.id.partition("/")[2]


def problem_of(experiment: Experiment, tests: pd.DataFrame, out: Path) -> Problem:
    """Collect the results of a problem below a folder, given those of its tests."""
    return Problem(experiment, tests, read(out / id_of(experiment, "final") / RESULTS))


def results_of(id: str, out: Path, scale: str = "") -> pd.DataFrame:
    """Read an experiment's results below a folder; of methods and seeds without any, those that come with the package.

    Args:
        id: the experiment's id.
        out: folder of the results at the scale.
        scale: the scale.

    Returns:
        The results, see :func:`fl_lightning.reproduce.outcome.numbers.collect`; empty if the folder has none. Runs with
        other settings than the config's stand alone.
    """
    own = read(out / id / RESULTS)
    ours = read(MEASURED / scale / id / RESULTS)
    if own.empty or ours.empty or CHANGED in own:
        return own
    others = ~ours[METHOD].isin(own[METHOD]) & ours["seed"].isin(own["seed"])
    return pd.concat([own, ours[others]], ignore_index=True)


def searches_measured(id: str, scale: str = "") -> set[int]:
    """Return the searches, by their seeds, whose tests of FedAvg at a scale come with the package."""
    ours = read(MEASURED / scale / id / RESULTS)
    return set() if ours.empty else set(search_of(ours[ours[METHOD].eq(BASELINE)]))
