"""Confirmation: the methods that gain most are compared once more, on seeds that had no part in choosing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from fl_lightning.report.statistics import FEWEST_SEEDS
from fl_lightning.reproduce.benchmark.gains import BASELINE, MOMENTUM, gains
from fl_lightning.reproduce.benchmark.tuning import FRESH, METHOD
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.outcome.numbers import RESULTS, read
from fl_lightning.reproduce.run_options import RunOptions
from fl_lightning.reproduce.running import run

BEST = 3  # methods of a problem that are compared once more


def confirm(experiments: Sequence[Experiment], runs: RunOptions) -> int:
    """Compare the best methods of finished experiments with FedAvg and FedAvgM on fresh seeds.

    Args:
        experiments: experiments whose methods are tuned.
        runs: options and folders of the runs, as read from the command line.

    Returns:
        The exit status, see :func:`run`; 0 without training if no method gains anything, or two seeds are all.
    """
    again = []
    for experiment in experiments:
        results = read(runs.out / experiment.scale / experiment.id / RESULTS)
        best = best_of(results, experiment.measures[0])
        if best:
            again.append(in_confirmation(experiment, best))
    return run(again, replace(runs, seeds=FRESH, subset=[])) if again else 0


def best_of(results: pd.DataFrame, measure: str) -> list[str]:
    """Name the methods with the largest gains above zero, at most three; none for fewer than three seeds."""
    if results.empty or results["seed"].nunique() < FEWEST_SEEDS or BASELINE not in set(results[METHOD]):
        return []
    gained = gains(results, measure)["gain"]
    return list(gained[gained.gt(0)].index[:BEST])


def in_confirmation(experiment: Experiment, best: Sequence[str]) -> Experiment:
    """Return the experiment of the confirmation, with the cells of FedAvg, FedAvgM and the best methods."""
    kept = {BASELINE, MOMENTUM, *best}
    cells = [cell for cell in experiment.cells if cell.labels[METHOD] in kept]
    return replace(experiment, id=confirmation_of(experiment), cells=tuple(cells))


def confirmation_of(experiment: Experiment) -> str:
    """Name the experiment of the confirmation."""
    document, _, name = experiment.id.partition("/")
    return f"{document}-confirmed/{name}"
