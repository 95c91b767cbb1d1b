"""Curves of runs over the rounds, and similarities of clients, laid out as plots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_lightning.fit.configs import Cell
from fl_lightning.report.plots import PAPER, Axis, Line, Lines, Mark, Panels
from fl_lightning.reproduce.jobs import Job
from fl_lightning.reproduce.papers import Experiment
from fl_lightning.reproduce.results import printed, same
from fl_lightning.runs.catalogue import about, measured
from fl_lightning.runs.reader import load
from fl_lightning.runs.seeds import band, label

OURS = "ours"  # name of the only line of all panels
SIMILARITIES = "similarities"  # the only measure that is no metric: sorted cosines of client pairs in the last round


@dataclass(frozen=True)
class Curve:
    """A line with a band.

    Attributes:
        labels: the labels of the curve's cell.
        measure: name of a metric in the papers, the metric's own name, or SIMILARITIES.
        points: mean and edges over the seeds (see :func:`fl_lightning.runs.seeds.band`), by round or by the rank of a
            pair of clients.
    """

    labels: Mapping[str, Any]
    measure: str
    points: pd.DataFrame


def curves(measures: Sequence[str], pairs: Sequence[tuple[Cell, Job]]) -> list[Curve]:
    """Make one curve for each cell and each measure of its finished jobs, in the order of the cells."""
    cells: dict[tuple[tuple[str, Any], ...], dict[int, Job]] = {}
    for cell, job in pairs:
        if job.finished:
            cells.setdefault(tuple(cell.labels.items()), {})[job.seed] = job
    found = [
        Curve(dict(labels), measure, band(by_seed(list(jobs.values()), measure)))
        for labels, jobs in cells.items()
        for measure in measures
    ]
    return [curve for curve in found if len(curve.points)]


def by_seed(jobs: Sequence[Job], measure: str) -> pd.DataFrame:
    """Tabulate a measure by round (similarities by rank), one column per job that has the measure; gaps are nan."""
    if measure == SIMILARITIES:
        return by_rank([cosines for job in jobs if len(cosines := _similarities(job))])
    metric, factor = measured(measure)
    tables = [job.run.metrics for job in jobs]
    return pd.DataFrame({n: factor * each[metric].dropna() for n, each in enumerate(tables) if metric in each})


def _similarities(job: Job) -> NDArray[np.float64]:
    path = job.run.arrays("cosines").get(job.rounds)
    cosines = load(path, "before")["before"] if path else np.zeros((0, 0))
    return np.asarray(cosines[np.triu_indices(len(cosines), 1)])


def by_rank(values: Sequence[NDArray[np.float64]]) -> pd.DataFrame:
    """Sort each run's values into a column, by rank from 1; a run with fewer clients fills its column by quantiles."""
    ranks = max(map(len, values), default=0)
    columns = [np.quantile(each, np.linspace(0, 1, ranks)) for each in values]
    return pd.DataFrame(dict(enumerate(columns)), index=range(1, ranks + 1))


def varying(labels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the axes on which the labels differ."""
    axes = dict.fromkeys(axis for each in labels for axis in each)
    return [axis for axis in axes if len({str(each.get(axis)) for each in labels}) > 1]


def name(labels: Mapping[str, Any], axes: Sequence[str]) -> str:
    """Write the labels on some axes: "FedAvg", "alpha 0.1", "IID, num_clients 5"."""
    return ", ".join(_spoken(axis, labels[axis]) for axis in axes if labels.get(axis) is not None)


def _spoken(axis: str, value: Any) -> str:
    text = label(value)
    bare = isinstance(value, str) or (isinstance(value, float) and math.isinf(value))
    return text if bare else f"{axis.rpartition('.')[2]} {text}"


def lines(
    found: Sequence[Curve], measures: Mapping[str, str], panels: Sequence[str], experiment: Experiment
) -> Lines | Panels:
    """Lay curves out in panels, with the paper's numbers as marks.

    Args:
        found: the curves, at least one.
        measures: title of the axis for each measure; every measure has panels of its own.
        panels: axes of the grid with a panel for each label. A curve without a label on such an axis is in all of the
            axis' panels.
        experiment: the experiment with the paper's numbers.
    """
    axes = [axis for axis in varying([curve.labels for curve in found]) if axis not in panels]
    places = _places([curve.labels for curve in found], panels)
    plots = {}
    for measure, place in itertools.product(measures, places):
        here = [curve for curve in found if curve.measure == measure and _is_in(curve, place)]
        inside = {name(curve.labels, axes) or OURS: curve for curve in here}
        titles = measures[measure] if len(measures) > 1 else "", name(place, panels)
        plots[", ".join(filter(None, titles))] = Lines(
            Axis("pair of clients, by ascending cosine" if measure == SIMILARITIES else "round"),
            _axis(measure, measures[measure]),
            [Line(called, curve.points) for called, curve in inside.items()],
            [mark for called, curve in inside.items() for mark in paper_marks(experiment, called, curve)],
        )
    columns = len({place[panels[-1]] for place in places if place}) if panels else 0
    if len(plots) == 1:
        return plots.popitem()[1]
    return Panels(plots, columns=columns if 1 < columns < min(len(plots), 6) else 0)


def _axis(measure: str, title: str) -> Axis:
    """Return the y-axis; a share under the metric's own name is shown in per cent, as papers print shares."""
    metric, factor = measured(measure)
    return Axis(title, percent=about(metric).percent and factor == 1)


def _places(labels: Sequence[Mapping[str, Any]], panels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the labels of each panel, the last axis fastest."""
    whole = [tuple(each[axis] for axis in panels) for each in labels if set(panels) <= set(each)]
    order = [list(dict.fromkeys(column)) for column in zip(*whole, strict=True)]
    distinct = sorted(
        dict.fromkeys(whole), key=lambda place: [known.index(at) for known, at in zip(order, place, strict=True)]
    )
    return [dict(zip(panels, place, strict=True)) for place in distinct or [()]]


def _is_in(curve: Curve, place: Mapping[str, Any]) -> bool:
    return all(same(curve.labels[axis], value) for axis, value in place.items() if axis in curve.labels)


def paper_marks(experiment: Experiment, method: str, curve: Curve) -> list[Mark]:
    """Mark the paper's numbers for a curve, at the rounds that the table names or at the curve's last round."""
    rounds = experiment.read_at(int(curve.points.index[-1]))
    numbers = {own: printed(experiment, {**curve.labels, "round": at}, curve.measure) for at, own in rounds.items()}
    return [Mark(method, round, number, PAPER) for round, number in numbers.items() if not math.isnan(number)]
