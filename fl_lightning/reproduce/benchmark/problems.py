"""The results of a problem: the comparison of all methods, the confirmation of the best, and the tries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fl_lightning.fit.configs import CONFIGS
from fl_lightning.reproduce.benchmark.confirming import confirmation_of
from fl_lightning.reproduce.benchmark.gains import BASELINE, gains
from fl_lightning.reproduce.benchmark.tuning import METHOD, tries_of
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.outcome.numbers import CHANGED, RESULTS, read

MEASURED = CONFIGS / "results"  # the results of the benchmark that come with the package


@dataclass(frozen=True)
class Problem:
    """Holds the results of one problem.

    Attributes:
        experiment: the experiment.
        results: its runs, see :func:`fl_lightning.reproduce.outcome.numbers.collect`.
        gains: its gains, see :func:`gains`.
        fresh: runs of the best methods on fresh seeds; empty if there are none.
        confirmed: gains of the fresh runs, see :func:`gains`; no row if there are none.
        tries: runs of the tries; empty if there are none.
    """

    experiment: Experiment
    results: pd.DataFrame
    gains: pd.DataFrame
    fresh: pd.DataFrame
    confirmed: pd.DataFrame
    tries: pd.DataFrame

    @property
    def name(self) -> str:
        """The problem's name, without the document's."""
        return self.experiment.id.partition("/")[2]

    @property
    def best(self) -> Any:
        """The gains on fresh seeds, without FedAvg's row; the largest first."""
        return self.confirmed.drop(BASELINE, errors="ignore")


def problem_of(experiment: Experiment, results: pd.DataFrame, out: Path) -> Problem:
    """Collect the results of a problem below a folder, given those of its comparison."""
    measure = experiment.measures[0]
    compared = gains(results, measure)
    fresh = results_of(confirmation_of(experiment), out)
    confirmed = compared.iloc[:0] if fresh.empty else gains(fresh, measure)
    tries = read(out / tries_of(experiment) / RESULTS)
    return Problem(experiment, results, compared, fresh, confirmed, tries)


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
