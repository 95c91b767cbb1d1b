"""Pictures of an experiment's runs: a paper's figure, or the curves of any experiment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.read_config import data_of
from fl_lightning.report.compared.long_table import column_per_run, long_table
from fl_lightning.report.compared.methods import differing
from fl_lightning.report.drawing import plots
from fl_lightning.report.drawing.on_paper import save
from fl_lightning.report.drawing.paper_axes import TOLD_APART
from fl_lightning.report.statistics import band
from fl_lightning.reproduce.experiments.choosing import named
from fl_lightning.reproduce.experiments.experiment import Experiment, Plot
from fl_lightning.reproduce.jobs import Job, Pairs, finished_by_cell
from fl_lightning.reproduce.outcome.numbers import printed, same
from fl_lightning.runs.catalogue import about, axis_title, measured
from fl_lightning.runs.pictures import DRAWN
from fl_lightning.runs.reader import load

OURS = "ours"  # name of the only line of all panels
SIMILARITIES = "similarities"  # the only measure that is no metric: sorted cosines of client pairs in the last round


def picture(experiment: Experiment, pairs: Pairs, folder: Path) -> Path | None:
    """Draw a paper's figure as ``figure.png``, any other experiment's curves as ``curves.png``.

    The figure for a paper, as PDF and SVG, and a CSV file of the drawn numbers are written beside the PNG.

    Args:
        experiment: an experiment of the papers, or a user's own.
        pairs: the experiment's cells and jobs; only finished jobs are drawn, except for partitions.
        folder: existing folder to write to.

    Returns:
        The path of the PNG; None if there is nothing to draw: no run is finished, or the runs of a table have one round
        only or more lines than can be told apart.
    """
    plot = experiment.plot
    if plot and plot.kind == "partition":
        drawn: plots.Plot | None = _partitions(pairs)
    elif plot and plot.kind == "surface":
        drawn = _surfaces(pairs)
    else:
        drawn = _curves(experiment, pairs)
    if drawn is None:
        return None
    path = folder / ("figure.png" if plot else "curves.png")
    save(drawn, folder, path.stem, kinds=("png", "pdf", "svg"))
    return path


def _curves(experiment: Experiment, pairs: Pairs) -> plots.Plot | None:
    shown = experiment.plot or _usual(experiment, [cell.labels for cell, _ in pairs])
    found = curves(list(shown.measures), pairs)
    names = {named(curve.labels, [axis for axis in curve.labels if axis not in shown.panels]) for curve in found}
    if not found or (
        experiment.plot is None and (len(names) > TOLD_APART or all(len(curve.points) < 2 for curve in found))
    ):
        return None
    return lines(found, shown.measures, shown.panels, experiment)


def _usual(experiment: Experiment, labels: Sequence[Mapping[str, Any]]) -> Plot:
    """Make the plot of the first measure: one line per method, or per chain of callbacks, or per last axis' label."""
    axes = list(dict.fromkeys(axis for each in labels for axis in each))
    line = next((axis for axis in ("method", "trainer.callbacks") if axis in axes), axes[-1] if axes else None)
    measure = experiment.measures[0]
    return Plot({measure: axis_title(measure)}, [axis for axis in differing(labels) if axis != line])


def _surfaces(pairs: Pairs) -> plots.Plot | None:
    """Plot the surfaces that LossSurface saved after the last round of each cell's run with the first seed.

    The loss of the model, in the middle, is written behind the title.
    """
    files = {
        called: file
        for called, job in _first_seed(pairs).items()
        if job.finished and (file := job.run.arrays("surface").get(job.rounds))
    }
    panels = {}
    for called, file in files.items():
        arrays = load(file, "steps", "loss")
        steps, loss = arrays["steps"], arrays["loss"]
        panels[f"{called}: {loss[len(steps) // 2, len(steps) // 2]:.3g}"] = plots.Surface(steps, loss)
    return plots.Panels(panels) if panels else None


def _partitions(pairs: Pairs) -> plots.Plot:
    """Plot the examples that clients hold in each cell with the first seed, one partition below the other."""
    panels = {}
    for called, job in _first_seed(pairs).items():
        counts = _class_counts(job)
        first = f"the first {DRAWN} of {len(counts):,} clients" if len(counts) > DRAWN else ""
        panels[", ".join(filter(None, (called, first)))] = plots.Bubbles(counts[:DRAWN])
    return plots.Panels(panels, columns=1)


def _first_seed(pairs: Pairs) -> dict[str, Job]:
    """Return the jobs with the first seed, by the labels of their cells."""
    axes = differing([cell.labels for cell, _ in pairs])
    return {named(cell.labels, axes): job for cell, job in pairs if job.seed == pairs[0][1].seed}


def _class_counts(job: Job) -> NDArray[np.int64]:
    """Return the (N, C) numbers of examples of each class at each client."""
    settings = job.config["data"]
    data = data_of({"data": settings | {"init_args": settings["init_args"] | {"seed": job.seed}}})
    data.prepare_data()
    data.setup("fit")
    if (counts := data.class_counts()) is None:
        raise ConfigurationError(f"{type(data).__name__} has no classes to draw: choose a data set with labels")
    return counts.numpy()


@dataclass(frozen=True)
class Curve:
    """A line with a band.

    Attributes:
        labels: the labels of the curve's cell.
        measure: name of a metric in the papers, the metric's own name, or SIMILARITIES.
        points: mean and edges over the seeds (see :func:`~fl_lightning.report.statistics.band`), by round or by the
            rank of a pair of clients.
    """

    labels: Mapping[str, Any]
    measure: str
    points: pd.DataFrame


def curves(measures: Sequence[str], pairs: Pairs) -> list[Curve]:
    """Make one curve for each cell and each measure of its finished jobs, in the order of the cells."""
    found = [
        Curve(labels, measure, band(by_seed(jobs, measure)))
        for labels, jobs in finished_by_cell(pairs)
        for measure in measures
    ]
    return [curve for curve in found if len(curve.points)]


def by_seed(jobs: Sequence[Job], measure: str) -> pd.DataFrame:
    """Tabulate a measure by round (similarities by rank), one column per job that has the measure; gaps are nan."""
    if measure == SIMILARITIES:
        return by_rank([cosines for job in jobs if len(cosines := _similarities(job))])
    metric, factor = measured(measure)
    return factor * column_per_run(long_table([job.run for job in jobs], [metric]))


def _similarities(job: Job) -> NDArray[np.float64]:
    path = job.run.arrays("cosines").get(job.rounds)
    cosines = load(path, "before")["before"] if path else np.zeros((0, 0))
    return np.asarray(cosines[np.triu_indices(len(cosines), 1)])


def by_rank(values: Sequence[NDArray[np.float64]]) -> pd.DataFrame:
    """Sort each run's values into a column, by rank from 1; a run with fewer clients fills its column by quantiles."""
    ranks = max(map(len, values), default=0)
    columns = [np.quantile(each, np.linspace(0, 1, ranks)) for each in values]
    return pd.DataFrame(dict(enumerate(columns)), index=range(1, ranks + 1))


def lines(
    found: Sequence[Curve], measures: Mapping[str, str], panels: Sequence[str], experiment: Experiment
) -> plots.Lines | plots.Panels:
    """Lay curves out in panels, with the paper's numbers as marks.

    Args:
        found: the curves, at least one.
        measures: title of the axis for each measure; every measure has panels of its own.
        panels: axes of the grid with a panel for each label. A curve without a label on such an axis is in all of the
            axis' panels.
        experiment: the experiment with the paper's numbers.
    """
    axes = [axis for axis in differing([curve.labels for curve in found]) if axis not in panels]
    places = _places([curve.labels for curve in found], panels)
    drawn = {}
    for measure, place in itertools.product(measures, places):
        here = [curve for curve in found if curve.measure == measure and _is_in(curve, place)]
        inside = {named(curve.labels, axes) or OURS: curve for curve in here}
        titles = measures[measure] if len(measures) > 1 else "", named(place, panels)
        drawn[", ".join(filter(None, titles))] = plots.Lines(
            plots.Axis("pair of clients, by ascending cosine" if measure == SIMILARITIES else "round"),
            _axis(measure, measures[measure]),
            [plots.Line(called, curve.points) for called, curve in inside.items()],
            [mark for called, curve in inside.items() for mark in paper_marks(experiment, called, curve)],
        )
    columns = len({place[panels[-1]] for place in places if place}) if panels else 0
    if len(drawn) == 1:
        return drawn.popitem()[1]
    return plots.Panels(drawn, columns=columns if 1 < columns < min(len(drawn), 6) else 0)


def _axis(measure: str, title: str) -> plots.Axis:
    """Return the y-axis; a share under the metric's own name is shown in per cent, as papers print shares."""
    metric, factor = measured(measure)
    return plots.Axis(title, percent=about(metric).percent and factor == 1)


def _places(labels: Sequence[Mapping[str, Any]], panels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the labels of each panel, the last axis fastest."""
    whole = [tuple(each[axis] for axis in panels) for each in labels if set(panels) <= set(each)]
    order = [dict.fromkeys(column) for column in zip(*whole, strict=True)]
    return [dict(zip(panels, place, strict=True)) for place in itertools.product(*order) if place in whole] or [{}]


def _is_in(curve: Curve, place: Mapping[str, Any]) -> bool:
    return all(same(curve.labels[axis], value) for axis, value in place.items() if axis in curve.labels)


def paper_marks(experiment: Experiment, method: str, curve: Curve) -> list[plots.Mark]:
    """Mark the paper's numbers for a curve, at the rounds that the table names or at the curve's last round."""
    rounds = experiment.read_at(int(curve.points.index[-1]))
    numbers = {own: printed(experiment, {**curve.labels, "round": at}, curve.measure) for at, own in rounds.items()}
    return [
        plots.Mark(method, round, number, plots.PAPER) for round, number in numbers.items() if not math.isnan(number)
    ]
