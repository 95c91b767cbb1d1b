"""Read numbers from run folders, one row per seed, and compare means with intervals to the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.report.compared.comparison import default_metric
from fl_lightning.report.compared.long_table import values_by_round
from fl_lightning.report.statistics import interval
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.jobs import Job, Pairs
from fl_lightning.runs.catalogue import is_item, metric_and_factor
from fl_lightning.runs.reader import Run

USUAL = "val/top1"  # the measure of a sweep that names none, if its runs log it
UNREADABLE = (ConfigurationError, OSError, KeyError)  # a file of a run that is missing, damaged or half written
SPREAD = "weights/spread"  # the clients' standard deviation, by which correlations are pooled
MINUS = " - "  # between the two metrics of a measure that is their difference
ROUNDS_TO = "rounds to "  # before the metric and the value of a measure that counts the rounds until it is reached
VARIANCE = " variance along "  # between a measure and the axis of the grid along which its variance is taken
# Name of an experiment's results file, and of its column with the settings that were changed, if any were.
RESULTS, CHANGED = "results.csv", "changed"


def collect(experiment: Experiment, jobs: Pairs) -> pd.DataFrame:
    """Read the runs of finished jobs.

    Returns:
        One row for each run and round that the table reads: the cell's labels (None on an axis that the cell lacks),
        ``round``, ``seed``, the measures and the noted metrics, ``seconds`` of training, of all
        processes, and the job's ``folder``. Empty, without columns, if no run is finished.
    """
    axes = list(dict.fromkeys(axis for cell, _ in jobs for axis in cell.labels))
    rows = []
    for cell, job in jobs:
        if job.finished:
            rows += _rows_of_job(experiment, axes, cell, job)
    if not rows:
        return pd.DataFrame()
    # A sweep may name a value twice: count each run once.
    table = pd.DataFrame(rows).drop_duplicates([*axes, "round", "seed"], ignore_index=True)
    table = with_variances(table, experiment.measures)
    cells = len({tuple(cell.labels.items()) for cell, _ in jobs})
    if not experiment.pooled or cells == 1:
        return table
    whole = [pool(experiment, runs) for _, runs in table.groupby(["round", "seed"], sort=False) if len(runs) == cells]
    return pd.concat([table, *whole], ignore_index=True)


def with_variances(table: pd.DataFrame, measures: Iterable[str]) -> pd.DataFrame:
    """Fill in measures such as ``top1 variance along participation``: the population variance over an axis' labels.

    The labels are all that the table has, two or more. The cell with the largest one has the variance of a seed; other
    cells, and a seed that lacks a label, have nan.
    """
    for name in measures:
        if VARIANCE not in name:
            continue
        of, axis = name.split(VARIANCE)
        alike = [other for other in [*axes_of(table), "seed"] if other != axis]
        seeds = table.groupby(alike, dropna=False)[of]
        labels = table[axis].nunique()
        whole = (seeds.transform("count") == labels) & (table[axis] == table[axis].max()) & (labels > 1)
        table[name] = seeds.transform("var", ddof=0).where(whole)
    return table


def pool(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Compute correlations over the clients of several runs together.

    The runs' clients hold the same data, and a client's summed weights have the same mean in all runs. So the
    covariance is the mean of the runs' covariances, and both variances are the means of the runs': with the runs'
    correlations r and standard deviations s of the weights, the correlation of n runs is Σ r s / √(n Σ s²).

    Args:
        experiment: the experiment; its ``pooled`` labels the result, and its measures are correlations or differences
            of two.
        runs: a row for each run, with the measures and SPREAD.

    Returns:
        One row; beside labels and measures it is the last run's.
    """
    spread = runs[SPREAD]
    factors = spread / math.sqrt(len(runs) * float((spread**2).sum()))
    measures = list(dict.fromkeys(experiment.measures))
    return runs.tail(1).assign(**experiment.pooled, **runs[measures].mul(factors, axis=0).sum(skipna=False))


def _rows_of_job(experiment: Experiment, axes: Sequence[str], cell: Cell, job: Job) -> list[dict[str, Any]]:
    """Return a finished job's rows of :func:`collect`, one for each round that the table reads."""
    run = job.run  # reads metrics.csv once
    rows = []
    for round, own in experiment.read_at(job.rounds).items():
        row = {axis: cell.labels.get(axis) for axis in axes}
        row |= {"round": round, "seed": job.seed}
        for name in (*experiment.measures, *experiment.noted):
            row[name] = measure(experiment, run, name, own)
        rows.append(row | {"seconds": job.seconds, "folder": str(job.folder)})
    return rows


def with_measure(experiment: Experiment, jobs: Iterable[Job]) -> Experiment:
    """Give an experiment that names no measures the accuracy, or what a report of its runs compares them by."""
    if experiment.measures:
        return experiment
    names = sorted(name for name in _logged(jobs) if not name.endswith("/*"))
    measure = USUAL if USUAL in names or not names else default_metric(names)
    return replace(experiment, metric=measure, measures=(measure,))


def unknown_measures(experiment: Experiment, jobs: Iterable[Job]) -> list[str]:
    """Write a line for each measure of a user's experiment that none of its runs has logged so far.

    Args:
        experiment: the experiment; a paper's, some of whose cells log less than others, has no unknown measures.
        jobs: the experiment's jobs. If none has begun, all measures may still be logged.
    """
    if experiment.rows or experiment.claims:
        return []
    logged = _logged(jobs)
    if not logged:
        return []
    asked = {_starred(metric_and_factor(name)[0]) for name in experiment.measures}
    lines = []
    for name in sorted(asked - logged):
        whole_round = f"{name}_epoch"  # beside the last step's, where a module logs both
        near = whole_round if whole_round in logged else nearest(name, logged)
        hint = f"; did you mean {near}?" if near else ""
        if "," in name:
            hint = f"; name several with a space between them: --measures {' '.join(name.split(','))}"
        lines.append(f"{experiment.id}: the runs log no {name}, but {', '.join(sorted(logged))}{hint}")
    return lines


def _logged(jobs: Iterable[Job]) -> set[str]:
    """Collect the names of the metrics that runs have logged, without the numbers of clients and classes."""
    names = set[str]()
    for job in jobs:
        with suppress(*UNREADABLE):  # the tables, made at the end, report the damage
            names |= {_starred(name) for name in job.run.names}
    return names


def _starred(name: str) -> str:
    """Replace the number of a client or a class, which may be absent in the first round, by a star."""
    return f"{name.rpartition('/')[0]}/*" if is_item(name) else name


def read(path: Path) -> pd.DataFrame:
    """Read a results file; an empty table if there is none, or if no run of it was finished.

    Raises:
        ConfigurationError: the file is no results file.
    """
    try:
        results = pd.read_csv(path)
    except (FileNotFoundError, pd.errors.EmptyDataError):
        return pd.DataFrame()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"expected a results file of reproduce, got {path}: {error}") from None
    if not {"round", "seed"} <= set(results.columns):
        raise ConfigurationError(f"expected columns round and seed in {path}, got {', '.join(results.columns)}")
    return results


def complete(experiment: Experiment, results: pd.DataFrame) -> pd.DataFrame:
    """Add the experiment's measures that results lack, as those of an earlier version do, with nan for numbers."""
    lacking = [name for name in experiment.measures if name not in results]
    return results.assign(**dict.fromkeys(lacking, math.nan))


def axes_of(results: pd.DataFrame) -> list[str]:
    """Return the axes of the grid and ``round``, which together tell the rows of one seed apart."""
    return [str(name) for name in results.columns[: list(results.columns).index("round") + 1]]


def measure(experiment: Experiment, run: Run, name: str, round: int) -> float:
    """Compute a metric's mean over the experiment's ``last`` rounds up to ``round``; nan if the metric was not logged.

    The factor γ that FedLAW learns is averaged over the 21 rounds around the middle: rounds 90 to 110 in the paper.
    ``train_top1 - top1`` is the difference of two metrics; ``rounds to top1 97`` is the number of rounds until top-1
    reaches 97 %, see :func:`rounds_to`. A variance along an axis takes several runs (:func:`with_variances`): nan.
    """
    if VARIANCE in name:
        return math.nan
    if MINUS in name:
        more, less = name.split(MINUS)
        return measure(experiment, run, more, round) - measure(experiment, run, less, round)
    if name.startswith(ROUNDS_TO):
        reached, value = name.removeprefix(ROUNDS_TO).split()
        metric, factor = metric_and_factor(reached)
        return rounds_to(factor * values_by_round(run, metric), float(value))
    metric, factor = metric_and_factor(name)
    first = round - experiment.our_rounds(experiment.last) + 1
    last = round
    if name == "gamma_learned":
        first = round // 2 - experiment.our_rounds(10)
        last = round // 2 + experiment.our_rounds(10)
    return factor * float(values_by_round(run, metric).loc[first:last].mean())


def rounds_to(values: pd.Series, value: float) -> float:
    """Count the rounds until the best of the values so far reaches a value, interpolated between two rounds.

    McMahan et al. (2017), Section 3, read rounds from a curve in this way. The best after rounds 1 to 3 is 90, 90 and
    96, so that 93 is reached half way from round 2 to round 3:

    >>> rounds_to(pd.Series([90.0, 80.0, 96.0], index=[1, 2, 3]), 93.0)
    2.5

    Args:
        values: the values by round, of which higher ones are better.
        value: the value to reach.

    Returns:
        The number of rounds; the first round's number if the first is good enough, nan if none is.
    """
    best = values.cummax()
    below = best[best < value]
    if len(below) == len(best):
        return math.nan
    there = best.index[len(below)]
    if below.empty:
        return float(there)
    share = (value - below.iloc[-1]) / (best[there] - below.iloc[-1])
    return float(below.index[-1] + share * (there - below.index[-1]))


def compare(experiment: Experiment, results: pd.DataFrame) -> pd.DataFrame:
    """Compare the numbers of our runs with the paper's numbers.

    Args:
        experiment: the experiment, whose rows give the paper's numbers.
        results: table of our runs, see :func:`collect`.

    Returns:
        One row for each cell, round and measure: labels, ``round``, ``measure``, ``mean`` and ``half_width`` of the
        95 % t interval over the seeds (nan with one seed), ``seeds``, ``paper`` and ``difference`` (nan where the paper
        prints nothing).
    """
    if results.empty:
        return results
    results = complete(experiment, results)
    axes = axes_of(results)
    theirs = on_paper(experiment, results).to_dict("records")
    lines = []
    for (labels, seeds), numbers in zip(results.groupby(axes, sort=False, dropna=False), theirs, strict=True):
        point = dict(zip(axes, labels, strict=True))
        for name in dict.fromkeys(experiment.measures):
            mean, half_width = interval(seeds[name])
            paper = numbers[name]
            line = {"measure": name, "mean": mean, "half_width": half_width, "seeds": int(seeds[name].count())}
            lines.append({**point, **line, "paper": paper, "difference": mean - paper})
    return pd.DataFrame(lines)


def printed(experiment: Experiment, point: Mapping[str, Any], name: str) -> float:
    """Look up the paper's number for a cell; nan where the paper prints none.

    A cell without a label on an axis (None or nan) matches every label of this axis: FedAvg matches every proxy set.
    """
    if MINUS in name:
        more, less = name.split(MINUS)
        return printed(experiment, point, more) - printed(experiment, point, less)
    for row in experiment.rows:
        shared = [axis for axis in point if axis in row and not pd.isna(point[axis])]
        if row.get(name) is not None and all(same(row[axis], point[axis]) for axis in shared):
            return float(row[name])
    return math.nan


def on_paper(experiment: Experiment, points: pd.DataFrame) -> pd.DataFrame:
    """Fill a table of cells and rounds with the paper's numbers, as if they came from runs with seed 0.

    A variance along an axis is that of the printed numbers.
    """
    axes = axes_of(points)
    points = points.drop_duplicates(axes).assign(seed=0)
    cells: list[dict[Any, Any]] = points[axes].to_dict("records")
    for name in experiment.measures:
        points[name] = [printed(experiment, cell, name) for cell in cells]
    return with_variances(points, experiment.measures)


def same(one: Any, other: Any) -> bool:
    """Tell whether two labels are the same; in a table that was read, 10 beside words is "10", and None may be nan."""
    return bool(one == other) or str(one) == str(other) or (pd.isna(one) and pd.isna(other))
