"""Draw runs: curves over the rounds, similarities of clients, partitions; and tabulate what is drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_lightning.fit.configs import Cell
from fl_lightning.reproduce.jobs import Job
from fl_lightning.reproduce.results import same
from fl_lightning.runs.catalogue import measured
from fl_lightning.runs.pictures import COLOURS, MARKED, bubbles
from fl_lightning.runs.reader import load
from fl_lightning.runs.seeds import band, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIMILARITIES = "similarities"  # the only measure that is no metric: sorted cosines of client pairs in the last round
STYLES = ("-", "--", ":", "-.")
TOLD_APART = len(COLOURS) * len(STYLES)  # largest number of different lines
PANEL = (3.6, 2.7)  # width and height in inches
INSIDE = 6  # largest number of lines in a legend inside a panel


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


def tidy(found: Sequence[Curve]) -> pd.DataFrame:
    """Make one table of all curves: labels, ``measure``, ``round`` (or rank) and the columns of the points."""
    tables = [curve.points.rename_axis("round").reset_index() for curve in found]
    return pd.concat(
        [table.assign(**curve.labels, measure=curve.measure) for curve, table in zip(found, tables, strict=True)],
        ignore_index=True,
    )


def varying(labels: Sequence[Mapping[str, Any]]) -> list[str]:
    """The axes on which the labels differ."""
    axes = dict.fromkeys(axis for each in labels for axis in each)
    return [axis for axis in axes if len({str(each.get(axis)) for each in labels}) > 1]


def name(labels: Mapping[str, Any], axes: Sequence[str]) -> str:
    """Write the labels on some axes: "FedAvg", "alpha 0.1", "IID, num_clients 5"."""
    return ", ".join(_spoken(axis, labels[axis]) for axis in axes if labels.get(axis) is not None)


def _spoken(axis: str, value: Any) -> str:
    text = label(value)
    bare = isinstance(value, str) or (isinstance(value, float) and math.isinf(value))
    return text if bare else f"{axis.rpartition('.')[2]} {text}"


def draw(found: Sequence[Curve], measures: Mapping[str, str], panels: Sequence[str]) -> Figure:
    """Draw curves in panels.

    Args:
        found: the curves, at least one.
        measures: title of the axis for each measure; every measure has panels of its own.
        panels: axes of the grid with a panel for each label. A curve without a label on such an axis is drawn in all of
            the axis' panels.
    """
    from matplotlib.figure import Figure  # here, because the import takes half a second

    lines = [axis for axis in varying([curve.labels for curve in found]) if axis not in panels]
    names = dict.fromkeys(name(curve.labels, lines) for curve in found)
    looks = [{"linestyle": style, "color": colour} for style in STYLES for colour in COLOURS]
    styles = dict(zip(names, itertools.cycle(looks), strict=False))
    places = _places([curve.labels for curve in found], panels)
    grid = [(measure, place) for measure in measures for place in places]
    columns = _columns(len(grid), len({place[panels[-1]] for place in places if place}) if panels else 1)
    rows = -(-len(grid) // columns)
    figure = Figure((PANEL[0] * columns + 1, PANEL[1] * rows + 0.5), layout="constrained")
    for number, (measure, place) in enumerate(grid):
        axes = figure.add_subplot(rows, columns, number + 1)
        inside = [curve for curve in found if curve.measure == measure and _is_in(curve, place)]
        _draw_panel(axes, {name(curve.labels, lines): curve.points for curve in inside}, styles)
        axes.set_title(name(place, panels), fontsize="medium")
        axes.set_xlabel("pair of clients, from opposed to alike" if measure == SIMILARITIES else "round")
        if number % columns == 0 or len(measures) > 1:
            axes.set_ylabel(measures[measure])
    _add_legend(figure, styles)
    return figure


def _places(labels: Sequence[Mapping[str, Any]], panels: Sequence[str]) -> list[dict[str, Any]]:
    """The labels of each panel, the last axis fastest."""
    whole = [tuple(each[axis] for axis in panels) for each in labels if set(panels) <= set(each)]
    order = [list(dict.fromkeys(column)) for column in zip(*whole, strict=True)]
    distinct = sorted(
        dict.fromkeys(whole), key=lambda place: [known.index(at) for known, at in zip(order, place, strict=True)]
    )
    return [dict(zip(panels, place, strict=True)) for place in distinct or [()]]


def _columns(panels: int, labels: int) -> int:
    """Choose the number of panels in a row.

    A row has one panel for each label of the last axis if there are 2 to 5 labels and several rows. Else, up to three
    panels form one row, and more panels nearly a square.
    """
    if 1 < labels < min(panels, 6):
        return labels
    return panels if panels <= 3 else math.ceil(math.sqrt(panels))


def _is_in(curve: Curve, place: Mapping[str, Any]) -> bool:
    return all(same(curve.labels[axis], value) for axis, value in place.items() if axis in curve.labels)


def _draw_panel(axes: Axes, lines: Mapping[str, pd.DataFrame], styles: Mapping[str, Mapping[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    for called, points in lines.items():
        mark = "." if len(points) <= MARKED else ""
        axes.plot(points.index, points["mean"], label=called, marker=mark, linewidth=1.5, **styles[called])
        colour = styles[called]["color"]
        axes.fill_between(points.index, points["low"], points["high"], color=colour, alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)


def _add_legend(figure: Figure, styles: Mapping[str, Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=called, linewidth=1.5, **style) for called, style in styles.items()]
    if len(handles) > INSIDE:
        figure.legend(handles=handles, loc="outside right upper", fontsize="small")
    elif len(handles) > 1:
        figure.axes[0].legend(handles=handles, fontsize="small")


def draw_partition(counts: Mapping[str, Tensor]) -> Figure:
    """Draw the examples of each class at each client, one partition below the other, with bubbles of one scale.

    Args:
        counts: (N, C) number of examples of each class at each client, by the partition's name.
    """
    blocks = list(counts.values())
    gap = torch.zeros_like(blocks[0][:, :1])
    figure = bubbles(torch.cat([part for block in blocks for part in (block, gap)][:-1], dim=1))
    if len(blocks) > 1:
        height = blocks[0].shape[1]
        centres = [row * (height + 1) + (height - 1) / 2 for row in range(len(blocks))]
        figure.axes[0].set_yticks(centres, list(counts))
        figure.axes[0].set_ylabel(f"classes 0 to {height - 1} of each")
    return figure


def tidy_counts(counts: Mapping[str, Tensor]) -> pd.DataFrame:
    """Make a table of the partitions: ``partition``, ``client``, ``class``, ``examples``."""
    tables = [pd.DataFrame(block.numpy()).rename_axis("client").reset_index() for block in counts.values()]
    long = [table.melt("client", var_name="class", value_name="examples") for table in tables]
    return pd.concat([table.assign(partition=called) for called, table in zip(counts, long, strict=True)])


def tidy_surfaces(surfaces: Mapping[str, Mapping[str, NDArray[Any]]]) -> pd.DataFrame:
    """Make a table of loss surfaces (``steps`` (n,), ``loss`` (n, n)): ``run``, ``d1``, ``d2``, ``loss``."""
    tables = [
        pd.DataFrame(one["loss"], one["steps"], one["steps"])
        .rename_axis("d1")
        .reset_index()
        .melt("d1", None, "d2", "loss")
        for one in surfaces.values()
    ]
    return pd.concat([table.assign(run=called) for called, table in zip(surfaces, tables, strict=True)])
