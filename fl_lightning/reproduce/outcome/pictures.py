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

from fl_lightning.callbacks.monitors.surface import PLANE, lowest, plane_weights
from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.read_config import data_of
from fl_lightning.report.compared.long_table import column_per_run, long_table, values_by_round
from fl_lightning.report.compared.methods import differing_names
from fl_lightning.report.drawing import plots
from fl_lightning.report.drawing.on_paper import save
from fl_lightning.report.drawing.paper_axes import TOLD_APART
from fl_lightning.report.statistics import band
from fl_lightning.reproduce.experiments.choosing import in_words
from fl_lightning.reproduce.experiments.experiment import Experiment, Plot
from fl_lightning.reproduce.jobs import Job, Pairs, differing_axes, finished_by_cell
from fl_lightning.reproduce.outcome.numbers import measure as result
from fl_lightning.reproduce.outcome.numbers import printed, same
from fl_lightning.runs.catalogue import about, axis_title, metric_and_factor
from fl_lightning.runs.pictures import DRAWN
from fl_lightning.runs.reader import load

OURS = "ours"  # name of the only line of all panels
SIMILARITIES = "similarities"  # sorted cosines of client pairs in the last round
# The measures that are no metrics, but arrays of the last round, each with the title of its x-axis: beside SIMILARITIES
# those that HessianMonitor saves, each with the array of its x.
FACTOR, STEP = "factor of all parameters", "step along the top eigenvector"
BY = {
    SIMILARITIES: ("pair of clients, by ascending cosine", ""),
    "profile/train_by_factor": (FACTOR, "factors"),
    "profile/val_by_factor": (FACTOR, "factors"),
    "profile/train_by_step": (STEP, "steps"),
    "profile/val_by_step": (STEP, "steps"),
    "profile/share": ("value of a parameter", "values"),
}
BINS, BEYOND = 20, 0.01  # bins of a histogram, and the share of the values that lie beyond each of its ends
OUTSIDE = -0.1  # least weight of a point on the plane of weights whose loss is drawn
NORMAL = "normal distribution of the same mean and deviation"


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
    drawn = _draw(experiment, plot, pairs) if plot else _curves(experiment, pairs)
    if drawn is None:
        return None
    path = folder / ("figure.png" if plot else "curves.png")
    save(drawn, folder, path.stem, kinds=("png", "pdf", "svg"))
    return path


def _draw(experiment: Experiment, plot: Plot, pairs: Pairs) -> plots.Plot | None:
    match plot.kind:
        case "partition":
            return _partitions(pairs)
        case "surface":
            return _surfaces(experiment, plot, pairs)
        case "labels":
            return _over_labels(experiment, plot, pairs)
        case "histogram":
            return _histogram(experiment, plot, pairs)
        case "epochs":
            return _epochs(plot, pairs)
        case "detections":
            return _detections(pairs)
        case "local":
            return _by_local_epoch(experiment, plot, pairs)
        case _:
            return _curves(experiment, pairs)


def _curves(experiment: Experiment, pairs: Pairs) -> plots.Plot | None:
    plot = experiment.plot or _usual_plot(experiment, pairs)
    curves = make_curves(list(plot.measures), pairs)
    if not curves:
        return None
    # A paper's figure is drawn as the paper has it; anything else only if its lines can be read.
    if experiment.plot is None and not _can_be_read(curves, plot.panels):
        return None
    return in_panels(curves, plot.measures, plot.panels, experiment)


def _can_be_read(curves: Sequence[Curve], panels: Sequence[str]) -> bool:
    """Tell whether any curve has two points, and the lines of all panels are few enough to be told apart."""
    names = set()
    for curve in curves:
        axes = [axis for axis in curve.labels if axis not in panels]
        names.add(in_words(curve.labels, axes))
    return len(names) <= TOLD_APART and any(len(curve.points) > 1 for curve in curves)


def _usual_plot(experiment: Experiment, pairs: Pairs) -> Plot:
    """Make the plot of the first measure: one line per method, or per chain of callbacks, or per last axis' label."""
    axes = list(dict.fromkeys(axis for cell, _ in pairs for axis in cell.labels))
    lines_by = axes[-1] if axes else None
    if "method" in axes:
        lines_by = "method"
    elif "trainer.callbacks" in axes:
        lines_by = "trainer.callbacks"
    measure = experiment.measures[0]
    return Plot({measure: axis_title(measure)}, [axis for axis in differing_axes(pairs) if axis != lines_by])


def _surfaces(experiment: Experiment, plot: Plot, pairs: Pairs) -> plots.Plot | None:
    """Plot the surfaces that LossSurface saved after one round of each cell's run with the first seed.

    The lowest loss is written behind the title, and a dot is where it lies. On the plane of three clients' weights, the
    loss of the model, in the middle, is written there, and dots are the weights with the lowest loss in every round.
    """
    panels = {}
    for name, job in _jobs_of_first_seed(pairs).items():
        round = experiment.our_rounds(plot.round) if plot.round else job.rounds
        files = job.run.arrays("plane") or job.run.arrays("surface")
        file = files.get(round) if job.finished else None
        if file is None:
            continue
        arrays = load(file, "steps", "loss")
        steps = arrays["steps"]
        loss = arrays["loss"]
        middle = len(steps) // 2
        shown = loss[middle, middle]
        marked = _plane(job)
        if marked:  # what lies far outside of the plane's corners would take most of the scale of colours
            loss = np.where((plane_weights(steps) < OUTSIDE).any(-1), np.nan, loss)
        else:
            shown, place = lowest(steps, loss)
            marked = {"dots": pd.DataFrame([place], [round], ["x", "y"])}
        panels[f"{name}: {shown:.3g}"] = plots.Surface(steps, loss, **marked)
    return plots.Panels(panels) if panels else None


def _plane(job: Job) -> dict[str, Any]:
    """Return the best weights and the corners of the plane of three clients' weights; nothing for another surface."""
    best = [values_by_round(job.run, f"surface/weight/{client}") for client in range(len(PLANE.T))]
    if not len(best[0]):
        return {}
    directions = PLANE.numpy().T
    dots = pd.DataFrame((np.stack(best, 1) - 1 / 3) @ directions, best[0].index, ["x", "y"])
    corners = (np.eye(3) - 1 / 3) @ directions
    return {
        "x": "client 0 against 1 and 2",
        "y": "client 1 against 2",
        "dots": dots,
        "outline": corners,
    }


def _over_labels(experiment: Experiment, plot: Plot, pairs: Pairs) -> plots.Plot | None:
    """Plot the runs' results against the labels of an axis of the grid, a panel for each measure."""
    cells = finished_by_cell(pairs)
    axes = [axis for axis in differing_axes(pairs) if axis != plot.over]
    panels = {}
    for measure, title in plot.measures.items():
        values: dict[str, dict[float, dict[int, float]]] = {}  # by line, label and seed
        for labels, jobs in cells:
            of_seeds = {job.seed: result(experiment, job.run, measure, job.rounds) for job in jobs}
            if not all(map(math.isnan, of_seeds.values())):
                values.setdefault(in_words(labels, axes) or OURS, {})[labels[plot.over]] = of_seeds
        lines = []
        for name, of_labels in values.items():
            lines.append(plots.Line(name, band(pd.DataFrame(of_labels).T.sort_index())))
        if lines:
            x = plots.Axis(plot.over, log=all(line.points.index.min() > 0 for line in lines))
            panels[title] = plots.Lines(x, _y_axis(measure, title), lines)
    return plots.Panels(panels) if panels else None


def _histogram(experiment: Experiment, plot: Plot, pairs: Pairs) -> plots.Plot | None:
    """Plot the histogram of a metric over the rounds of all finished runs, beside a normal distribution.

    If the plot names a round, the rounds are the paper's ten before it and ten after it.
    """
    ((metric, title),) = plot.measures.items()
    first, last = 1.0, math.inf
    if plot.round:
        first = experiment.our_rounds(plot.round - 10)
        last = experiment.our_rounds(plot.round + 10)
    table = long_table([job.run for _, job in pairs if job.finished], [metric])
    values = table.loc[table["round"].between(first, last), "value"].to_numpy()
    if not len(values):
        return None
    low, high = np.quantile(values, [BEYOND, 1 - BEYOND])
    edges = np.linspace(low, high, BINS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    counts, _ = np.histogram(values, edges)
    inside = values[(values >= edges[0]) & (values <= edges[-1])]
    mean, deviation = inside.mean(), inside.std()
    share = (edges[1] - edges[0]) * len(inside) / len(values)
    normal = share * np.exp(-(((middles - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))
    lines = [
        plots.Line(OURS, _without_band(counts / len(values), middles)),
        plots.Line(OURS, _without_band(normal, middles), NORMAL),
    ]
    return plots.Lines(plots.Axis(title), plots.Axis("share of the rounds", percent=True), lines)


def _epochs(plot: Plot, pairs: Pairs) -> plots.Plot | None:
    """Plot γ and λ after each of the server's epochs, for the first seed's first, middle and last saved round."""
    panels = {}
    (job,) = _jobs_of_first_seed(pairs).values()
    files = job.run.arrays("fedlaw") if job.finished else {}
    if not files:
        return None
    rounds = sorted(files)
    for measure, title in plot.measures.items():
        for round in dict.fromkeys([rounds[0], rounds[(len(rounds) - 1) // 2], rounds[-1]]):
            arrays = load(files[round], "gamma", "weights", "clients")
            values = arrays[measure].reshape(len(arrays["gamma"]), -1)
            names = [title]
            if measure == "weights":
                names = [f"client {client}" for client in arrays["clients"]]
            lines = []
            for name, of_name in zip(names, values.T, strict=True):
                lines.append(plots.Line(name, _without_band(of_name, range(1, len(values) + 1))))
            panels[f"{title}, round {round}"] = plots.Lines(plots.Axis("epoch on the server"), plots.Axis(title), lines)
    return plots.Panels(panels, columns=len(panels) // len(plot.measures))


def _detections(pairs: Pairs) -> plots.Plot | None:
    """Plot what each cell's run with the first seed has detected, a row for each cell, by the saved rounds."""
    panels = {}
    rounds = set[int]()
    for name, job in _jobs_of_first_seed(pairs).items():
        files = job.run.arrays("detections") if job.finished else {}
        rounds.update(files)
        for round in sorted(files):
            arrays = load(files[round], "images", "boxes")
            panels[f"{name}, round {round}"] = plots.Boxes(arrays["images"], arrays["boxes"])
    return plots.Panels(panels, columns=len(rounds)) if panels else None


def _by_local_epoch(experiment: Experiment, plot: Plot, pairs: Pairs) -> plots.Plot | None:
    """Plot measures by local epoch, means over the last rounds, and by round below; a panel for each cell.

    A measure's value in the e-th local epoch is the metric ``<measure>_in/<e>``.
    """
    cells = finished_by_cell(pairs)
    axes = differing_axes(pairs)
    panels = {}
    for x in ("local epoch", "round"):
        for labels, jobs in cells:
            lines = []
            for measure, title in plot.measures.items():
                values = column_per_job(jobs, measure) if x == "round" else _in_local_epochs(experiment, jobs, measure)
                if len(values):
                    lines.append(plots.Line(title, band(values)))
            if lines:
                y = plots.Axis(about(next(iter(plot.measures))).panel)
                panels[f"{in_words(labels, axes) or OURS}, by {x}"] = plots.Lines(plots.Axis(x), y, lines)
    return plots.Panels(panels, columns=len(cells)) if panels else None


def _in_local_epochs(experiment: Experiment, jobs: Sequence[Job], measure: str) -> pd.DataFrame:
    """Tabulate a measure by local epoch, one column per job that has the measure."""
    columns = {}
    for job in jobs:
        epochs = job.run.items(f"{measure}_in").columns
        values = {epoch: result(experiment, job.run, f"{measure}_in/{epoch}", job.rounds) for epoch in epochs}
        if values:
            columns[job.seed] = pd.Series(values)
    return pd.DataFrame(columns)


def _without_band(values: Any, x: Any) -> pd.DataFrame:
    """Return the points of a line of single numbers."""
    return pd.DataFrame({"mean": values, "low": math.nan, "high": math.nan, "seeds": 1}, index=x)


def _partitions(pairs: Pairs) -> plots.Plot:
    """Plot the examples that clients hold in each cell with the first seed, one partition below the other."""
    panels = {}
    for name, job in _jobs_of_first_seed(pairs).items():
        counts = _class_counts(job)
        titles = [name] if name else []
        if len(counts) > DRAWN:
            titles.append(f"the first {DRAWN} of {len(counts):,} clients")
        panels[", ".join(titles)] = plots.Bubbles(counts[:DRAWN])
    return plots.Panels(panels, columns=1)


def _jobs_of_first_seed(pairs: Pairs) -> dict[str, Job]:
    """Return the jobs with the first seed, by the labels of their cells."""
    axes = differing_axes(pairs)
    first = pairs[0][1].seed
    return {in_words(cell.labels, axes): job for cell, job in pairs if job.seed == first}


def _class_counts(job: Job) -> NDArray[np.int64]:
    """Return the (N, C) numbers of examples of each class at each client."""
    settings = job.config["data"]
    data = data_of({"data": settings | {"init_args": settings["init_args"] | {"seed": job.seed}}})
    data.prepare_data()
    data.setup("fit")
    counts = data.class_counts()
    if counts is None:
        raise ConfigurationError(f"{type(data).__name__} has no classes to draw: choose a data set with labels")
    return counts.numpy()


@dataclass(frozen=True)
class Curve:
    """A line with a band.

    Attributes:
        labels: the labels of the curve's cell.
        measure: name of a metric in the papers, the metric's own name, or one of BY.
        points: mean and edges over the seeds (see :func:`~fl_lightning.report.statistics.band`), by round or by what
            BY says.
    """

    labels: Mapping[str, Any]
    measure: str
    points: pd.DataFrame


def make_curves(measures: Sequence[str], pairs: Pairs) -> list[Curve]:
    """Make one curve for each cell and each measure of its finished jobs, in the order of the cells."""
    curves = []
    for labels, jobs in finished_by_cell(pairs):
        for measure in measures:
            points = band(column_per_job(jobs, measure))
            if len(points):
                curves.append(Curve(labels, measure, points))
    return curves


def column_per_job(jobs: Sequence[Job], measure: str) -> pd.DataFrame:
    """Tabulate a measure by round (or by what BY says), one column per job that has the measure; gaps are nan."""
    if measure == SIMILARITIES:
        return sort_by_rank(list(filter(len, map(_similarities, jobs))))
    if measure in BY:
        profiles = {}
        for job in jobs:
            file = job.run.arrays("profile").get(job.rounds)
            if file is not None:
                profiles[job.seed] = _read_profile(file, measure)
        return pd.DataFrame(profiles)
    metric, factor = metric_and_factor(measure)
    return factor * column_per_run(long_table([job.run for job in jobs], [metric]))


def _similarities(job: Job) -> NDArray[np.float64]:
    """Return the cosine of each pair of clients once in the last round, and of no client with itself."""
    path = job.run.arrays("cosines").get(job.rounds)
    cosines = load(path, "before")["before"] if path else np.zeros((0, 0))
    return np.asarray(cosines[np.triu_indices(len(cosines), 1)])


def _read_profile(file: Path, measure: str) -> pd.Series[float]:
    """Read a measure that HessianMonitor saved, by its x."""
    _, x = BY[measure]
    y = measure.removeprefix("profile/")
    arrays = load(file, x, y)
    return pd.Series(arrays[y], arrays[x])


def sort_by_rank(values: Sequence[NDArray[np.float64]]) -> pd.DataFrame:
    """Sort each run's values, one of each client or pair of clients, into a column, by rank from 1.

    A run with fewer values than another one fills its column by quantiles.
    """
    ranks = max(map(len, values), default=0)
    levels = np.linspace(0, 1, ranks)
    columns = {run: np.quantile(of_run, levels) for run, of_run in enumerate(values)}
    return pd.DataFrame(columns, index=range(1, ranks + 1))


def in_panels(
    curves: Sequence[Curve], measures: Mapping[str, str], panels: Sequence[str], experiment: Experiment
) -> plots.Lines | plots.Panels:
    """Lay curves out in panels, with the paper's numbers as marks.

    Args:
        curves: the curves, at least one.
        measures: title of the axis for each measure; every measure has panels of its own.
        panels: axes of the grid with a panel for each label. A curve without a label on such an axis is in all of the
            axis' panels.
        experiment: the experiment with the paper's numbers.
    """
    cells = [curve.labels for curve in curves]
    line_axes = [axis for axis in differing_names(cells) if axis not in panels]
    places = _places(cells, panels)
    drawn = {}
    for measure, y_title in measures.items():
        of_measure = [curve for curve in curves if curve.measure == measure]
        for place in places:
            lines = {}
            for curve in of_measure:
                if _is_in(curve, place):
                    lines[in_words(curve.labels, line_axes) or OURS] = curve
            title = in_words(place, panels)
            if len(measures) > 1:
                title = ", ".join(filter(None, [y_title, title]))
            drawn[title] = _panel(measure, y_title, lines, experiment)
    if len(drawn) == 1:
        return drawn.popitem()[1]
    # A row for each label of the other axes, if it is not too long; or else a nearly square grid.
    columns = len({place[panels[-1]] for place in places if place}) if panels else 0
    if not 1 < columns < min(len(drawn), 6):
        columns = 0
    return plots.Panels(drawn, columns=columns)


def _panel(measure: str, y_title: str, curves: Mapping[str, Curve], experiment: Experiment) -> plots.Lines:
    """Plot curves by their names, with the paper's numbers as marks."""
    x = plots.Axis(BY[measure][0] if measure in BY else "round")
    lines = []
    marks = []
    for name, curve in curves.items():
        lines.append(plots.Line(name, curve.points))
        marks += paper_marks(experiment, name, curve)
    return plots.Lines(x, _y_axis(measure, y_title), lines, marks)


def _y_axis(measure: str, title: str) -> plots.Axis:
    """Return the y-axis; a share under the metric's own name is shown in per cent, as papers print shares."""
    if measure in BY:
        return plots.Axis(title)
    metric, factor = metric_and_factor(measure)
    return plots.Axis(title, percent=about(metric).percent and factor == 1)


def _places(cells: Sequence[Mapping[str, Any]], panels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the labels of each panel, the last axis fastest; no panel is empty, unless all are."""
    taken = []  # the panels of the curves that have a label on each axis; other curves are in several panels
    for labels in cells:
        if labels.keys() >= set(panels):
            taken.append(tuple(map(labels.get, panels)))
    order = map(dict.fromkeys, zip(*taken, strict=True))
    places = [dict(zip(panels, place, strict=True)) for place in itertools.product(*order) if place in taken]
    return places or [{}]


def _is_in(curve: Curve, place: Mapping[str, Any]) -> bool:
    return all(same(curve.labels[axis], value) for axis, value in place.items() if axis in curve.labels)


def paper_marks(experiment: Experiment, method: str, curve: Curve) -> list[plots.Mark]:
    """Mark the paper's numbers for a curve, at the rounds that the table names or at the curve's last round."""
    rounds = experiment.read_at(int(curve.points.index[-1]))
    numbers = {}  # a round of ours has one mark, even if it stands for two of the paper's
    for theirs, ours in rounds.items():
        numbers[ours] = printed(experiment, {**curve.labels, "round": theirs}, curve.measure)
    return [plots.Mark(method, ours, number, plots.PAPER) for ours, number in numbers.items() if not math.isnan(number)]
