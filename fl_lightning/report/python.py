"""Finished runs in Python: load_runs, compare, write_report, with the numbers and words of ``fl-lightning report``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fl_lightning.better import better_in
from fl_lightning.errors import ConfigurationError
from fl_lightning.report.compared import comparison, verdict
from fl_lightning.report.compared.experiments import Experiment, experiments
from fl_lightning.report.compared.methods import make_methods
from fl_lightning.runs.reader import Run, read_runs

if TYPE_CHECKING:
    from fl_lightning.report.page import Part


@dataclass(frozen=True, eq=False)
class Result:
    """Holds the numbers and the words of a comparison, see :func:`compare`.

    Attributes:
        comparisons: one comparison for each problem (data and network) that the methods are tried on.
    """

    comparisons: Sequence[comparison.Comparison]

    @property
    def table(self) -> pd.DataFrame:
        """The numbers, a row for each problem and method; those of ``report --figures`` in comparison.csv."""
        return verdict.numbers(self.comparisons)

    @property
    def verdict(self) -> str:
        """The report's sentence on which method is better, by how much and how sure; one line for each problem."""
        return "\n".join(map(verdict.verdict, self.comparisons))

    def _repr_html_(self) -> str:
        """Write the verdict and the report's table for a notebook."""
        return verdict.html(self.comparisons)

    @property
    def p(self) -> float:
        """The p value of the paired t test of two methods' means over the rounds; nan for fewer than three seeds.

        Raises:
            ConfigurationError: there is not one other method than the baseline, but none or several.
        """
        others = [standing for problem in self.comparisons for standing in problem.others]
        if len(others) != 1:
            raise ConfigurationError(
                f"p is that of one method and a baseline, got {len(others)} comparisons: see mean_p in the table"
            )
        return others[0].apart["mean"].p


def load_runs(
    folder: str | Path, lower_is_better: Iterable[str] = (), higher_is_better: Iterable[str] = ()
) -> list[Run]:
    """Read a run folder, or all run folders within a folder, by experiment and then by the time when they began.

    Args:
        folder: the folder, such as ``runs/mine``.
        lower_is_better: metrics of which lower values are better, if their runs do not say so.
        higher_is_better: metrics of which higher values are better, if their runs do not say so.

    Returns:
        The runs, each with its ``metrics`` (a DataFrame, a row for each round), ``settings``, ``seed``, ``method`` and
        ``path``.

    Raises:
        ConfigurationError: the folder is missing or holds no run, a file of a run is damaged, or a name is in both
            lists.
    """
    return read_runs([Path(folder)], better_in(lower_is_better, higher_is_better))


def compare(runs: Sequence[Run], metric: str | None = None, baseline: str | None = None) -> Result:
    """Compare methods seed by seed: runs that differ only in their seed are one method.

    A warning names each run that is left out, and each that has not finished.

    Args:
        runs: the runs of :func:`load_runs`.
        metric: name of the metric; by default ``val/top1``, or else another ``val/*``.
        baseline: the method that the others are compared with, by default FedAvg.

    Raises:
        ConfigurationError: there are no runs, no run has the metric, or no method has the baseline's name.
    """
    methods, notes = make_methods(_check_runs(runs))
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return Result(comparison.compare(methods, metric, baseline))


def write_report(runs: Sequence[Run], file: str | Path) -> None:
    """Write the page of ``fl-lightning report`` about runs.

    Args:
        runs: the runs of :func:`load_runs`.
        file: the HTML file to write.

    Raises:
        ConfigurationError: there are no runs, the file cannot be written, or ``fl-lightning[report]`` is not installed.
    """
    write_page([compare_methods(part) for part in experiments(_check_runs(runs))], Path(file))


def compare_methods(
    experiment: Experiment, metric: str | None = None, baseline: str | None = None, target: float | None = None
) -> Experiment:
    """Compare the methods of an experiment, see :func:`comparison.compare`."""
    return replace(experiment, comparisons=comparison.compare(experiment.methods, metric, baseline, target))


def write_page(experiments: Sequence[Experiment], file: Path) -> list[Part]:
    """Write the report about experiments.

    Returns:
        The parts of the page, one for each experiment.

    Raises:
        ConfigurationError: the file cannot be written, or ``fl-lightning[report]`` is not installed.
    """
    try:
        from fl_lightning.report.page import parts_of_page, render  # needs packages that a run does not
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ConfigurationError(f"{package} is not installed: pip install 'fl-lightning[report]'") from None
    parts = parts_of_page(experiments)
    page = render(parts)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"expected an HTML file that can be written, got {file}: {error}") from None
    return parts


def _check_runs(runs: Sequence[Run]) -> Sequence[Run]:
    """Return the runs, or refuse a folder in their place, none, and anything that is no run."""
    if isinstance(runs, str | Path) or not runs or not all(isinstance(run, Run) for run in runs):
        raise ConfigurationError(f"expected the runs of load_runs(folder), at least one, got {runs!r}")
    return runs
