"""Draw each kind of plot into Matplotlib's axes, for the figures of on_paper.py."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fl_lightning.report.drawing.plots import (
    BYTES,
    PAPER,
    Axis,
    Bars,
    Boxes,
    Bubbles,
    Dots,
    Heat,
    Line,
    Lines,
    Plot,
    Surface,
)
from fl_lightning.runs.pictures import (
    COLOURS,
    MARKED_POINTS,
    add_boxes,
    add_bubbles,
    add_heat,
    add_surface,
    loss_levels,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Ruler
    from matplotlib.cm import ScalarMappable

DASHES: Sequence[Any] = ("-", (0, (3, 1.5)), (0, (7, 2)), (0, (4, 1.5, 1, 1.5)), (0, (8, 1.5, 1, 1.5)))
DOTS: Any = (0, (1, 1.2))  # of a method's other lines
MARKERS = "os^XDPv<h"  # nine markers, so that two methods of one colour have different markers
TOLD_APART = math.lcm(len(COLOURS), len(DASHES))  # largest number of methods with looks of their own
MARKERS_OF_A_LINE = 12  # about the largest number of markers on a line
BEYOND_LINES = 0.5  # how far bands are shown beyond the lines, in spans of the lines
NAME_WIDTH = 0.23  # room for a name along an axis of a heat map, in inches
NAME = 24  # number of letters in a line of a bar's name
STEPS = (1, 2, 5, 10)  # ticks are multiples of these


class Look(NamedTuple):
    """How a method looks in all plots; ``number`` is the method's place in legends."""

    number: int
    colour: str
    dashes: Any
    marker: str


def look_of(number: int) -> Look:
    """Return the look with a number; up to TOLD_APART looks differ."""
    return Look(
        number=number,
        colour=COLOURS[number % len(COLOURS)],
        dashes=DASHES[number % len(DASHES)],
        marker=MARKERS[number % len(MARKERS)],
    )


@dataclass(frozen=True)
class Common:
    """Gives the panels of a figure one size, one set of looks and one scale.

    Attributes:
        width: width of a panel in inches.
        looks: each method's look.
        levels: lines of equal loss.
        largest: number of examples of the largest bubble.
        legend: key to sort by and a drawn example, by the text in the legend.
        colours: a drawn example for the colour bar, and the bar's axis; at most one.
    """

    width: float
    looks: Mapping[str, Look]
    levels: Any
    largest: int
    legend: dict[str, tuple[Any, Artist]] = field(default_factory=dict)
    colours: list[tuple[ScalarMappable, Axis]] = field(default_factory=list)


def common(panels: Sequence[Plot], width: float, methods: Sequence[str]) -> Common:
    """Collect what panels of a width have in common; methods that are not among ``methods`` have looks after theirs."""
    lines = [line.method for plot in panels if isinstance(plot, Lines) for line in plot.lines]
    dotted = [method for plot in panels if isinstance(plot, Dots) for method in plot.dots]
    surfaces = [plot.loss for plot in panels if isinstance(plot, Surface)]
    every = dict.fromkeys([*methods, *lines, *dotted])
    return Common(
        width=width,
        looks={method: look_of(number) for number, method in enumerate(every)},
        levels=loss_levels(surfaces) if surfaces else (),
        largest=max((int(plot.counts.max()) for plot in panels if isinstance(plot, Bubbles)), default=0),
    )


@singledispatch
def paint(plot: Plot, axes: Axes, shared: Common) -> None:
    """Draw a plot into empty axes, with titles of the axes, and enter the plot's legend and colours in ``shared``."""
    raise NotImplementedError(f"no print of a {type(plot).__name__}")


@paint.register(Lines)
def _(plot: Lines, axes: Axes, shared: Common) -> None:
    from matplotlib.lines import Line2D

    for line in plot.lines:
        points = line.points
        look = shared.looks[line.method]
        style = _style(line, look)
        axes.plot(points.index, points["mean"], **style)
        example = Line2D([], [], **style | {"linestyle": look.dashes})
        shared.legend.setdefault(line.method, ((0, look.number), example))
        if line.variant:
            shared.legend[line.variant] = ((1,), Line2D([], [], color="black", linestyle=DOTS))
        if points["low"].notna().any():
            band = {"color": style["color"], "alpha": 0.15, "linewidth": 0, "zorder": 1}
            axes.fill_between(points.index, points["low"], points["high"], **band)
    for mark in plot.marks:
        style = {"marker": "*", "ms": 7} if mark.text == PAPER else {"marker": "D", "ms": 5}
        style |= {"linestyle": "", "markeredgecolor": "black", "markeredgewidth": 0.5, "zorder": 4, "clip_on": False}
        axes.plot(mark.x, mark.y, color=shared.looks[mark.method].colour, **style)
        shared.legend[mark.text] = ((2,), Line2D([], [], color="white", **style))
    set_ruler(axes.xaxis, plot.x, [x for line in plot.lines for x in line.points.index])
    set_ruler(axes.yaxis, plot.y)
    if plot.x.log:
        axes.set_xscale("log")
        drawn = sorted({x for line in plot.lines for x in line.points.index})
        axes.set_xticks(drawn, [f"{x:g}" for x in drawn])
        axes.minorticks_off()


def _style(line: Line, look: Look) -> dict[str, Any]:
    """Choose colour, dashes and marker of a line by its method's look; a line that is a variant is dotted."""
    every = max(1, math.ceil(len(line.points) / MARKERS_OF_A_LINE))
    marked = len(line.points) <= MARKED_POINTS and not line.variant
    return {
        "color": look.colour,
        "linestyle": DOTS if line.variant else look.dashes,
        "marker": look.marker if marked else "",
        "markevery": (look.number % every, every),
    }


def y_range(plots: Sequence[Lines]) -> tuple[float, float]:
    """Compute the range of y of plots that share a y-axis.

    All lines and marks are shown whole, and bands as far as half the lines' span beyond the lines: the interval of two
    seeds may be many times as wide as everything else.
    """
    axis = plots[0].y
    marks = [mark.y for plot in plots for mark in plot.marks]
    lines = [line.points for plot in plots for line in plot.lines]
    means = np.concatenate([marks, *(points["mean"] for points in lines)])
    edges = np.concatenate([points[["low", "high"]].to_numpy().ravel() for points in lines])
    means = means[np.isfinite(means)]
    edges = edges[np.isfinite(edges)]
    if not len(means):
        return 0, 1
    span = float(np.ptp(means)) or 0.1 * abs(float(means[0])) or 1.0
    edges = edges.clip(means.min() - BEYOND_LINES * span, means.max() + BEYOND_LINES * span)
    shown = np.concatenate([means, edges])
    low, high = float(shown.min()), float(shown.max())
    whole = _whole(axis)
    if whole is not None and means.min() >= 0 and means.max() <= whole:
        low, high = max(low, 0), min(high, whole)
    margin = 0.04 * ((high - low) or span)
    return low - margin, high + margin


def _whole(axis: Axis) -> int | None:
    """Return the value of the whole on an axis of shares; None if the axis has no shares."""
    if axis.percent:
        return 1
    return 100 if axis.title.endswith("(%)") else None


@paint.register(Dots)
def _(plot: Dots, axes: Axes, shared: Common) -> None:
    for method, dots in plot.dots.items():
        look = shared.looks[method]
        (drawn,) = axes.plot(dots["x"], dots["y"], look.marker, markersize=3.5, color=look.colour)
        shared.legend[method] = ((0, look.number), drawn)
    set_ruler(axes.xaxis, plot.x, [x for dots in plot.dots.values() for x in dots["x"]])
    set_ruler(axes.yaxis, plot.y, [y for dots in plot.dots.values() for y in dots["y"]])
    if plot.categories:
        axes.invert_yaxis()


@paint.register(Bars)
def _(plot: Bars, axes: Axes, shared: Common) -> None:
    names = [textwrap.fill(str(name), NAME) for name in plot.parts.index]
    left = np.zeros(len(names))
    for number, part in enumerate(plot.parts):
        lengths = plot.parts[part].to_numpy(dtype=float)
        drawn = axes.barh(names, lengths, left=left, height=0.7, color=look_of(number).colour, linewidth=0)
        shared.legend[str(part)] = ((0, number), drawn[0])
        left = left + lengths
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params("y", length=0)
    set_ruler(axes.xaxis, plot.x)


@paint.register(Heat)
def _(plot: Heat, axes: Axes, shared: Common) -> None:
    named = int(shared.width / NAME_WIDTH)
    image = add_heat(axes, plot.values, (plot.low, plot.high), plot.diverging, named)
    if any(isinstance(name, str) for name in plot.values.columns):
        axes.tick_params("x", rotation=90)
    axes.set_aspect("equal" if plot.x.title == plot.y.title else "auto")
    axes.set(xlabel=plot.x.title, ylabel=plot.y.title)
    axes.grid(visible=False)
    shared.colours[:] = [(image, plot.colour)]


@paint.register(Surface)
def _(plot: Surface, axes: Axes, shared: Common) -> None:
    from matplotlib.lines import Line2D

    drawn = add_surface(axes, plot.steps, plot.loss, shared.levels)
    if plot.outline is not None:
        (inside,) = axes.fill(*plot.outline.T, fill=False, edgecolor="black", linewidth=0.8)
        for contours in axes.collections:
            contours.set_clip_path(inside)
    if plot.dots is not None:
        rounds = plot.dots.round(6).groupby(["x", "y"]).size()
        places = rounds.index.to_frame()
        axes.scatter(places["x"], places["y"], s=4 * rounds, color=COLOURS[1], linewidths=0, zorder=3)
        style: dict[str, Any] = {"linestyle": "", "markersize": 5}
        dot = Line2D([], [], marker="o", color=COLOURS[1], **style)
        shared.legend["lowest loss; the area is the number of rounds"] = ((1,), dot)
        shared.legend["equal weights"] = ((2,), Line2D([], [], marker="+", color="black", **style))
    axes.set(xlabel=plot.x, ylabel=plot.y)
    axes.locator_params(nbins=2)
    axes.grid(visible=False)
    shared.colours[:] = [(drawn, Axis("loss"))]


@paint.register(Bubbles)
def _(plot: Bubbles, axes: Axes, shared: Common) -> None:
    from matplotlib.lines import Line2D

    add_bubbles(axes, plot.counts, shared.largest, plot.drawn_names)
    drawn = Line2D([], [], linestyle="", marker="o", color=COLOURS[0], markersize=6)
    shared.legend[f"the largest bubble: {shared.largest:,} examples"] = ((0,), drawn)
    axes.grid(visible=False)


@paint.register(Boxes)
def _(plot: Boxes, axes: Axes, shared: Common) -> None:
    add_boxes(axes, plot.images, plot.boxes)


def set_ruler(ruler: Ruler, axis: Axis, values: Iterable[Any] = ()) -> None:
    """Scale and title an axis; an axis of whole numbers gets whole ticks."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    kinds = {isinstance(value, int | float | np.number) and value == int(value) for value in values}
    if axis.title == BYTES:
        ruler.set_major_formatter(EngFormatter("B"))
    elif axis.percent:
        ruler.set_major_formatter(PercentFormatter(1, symbol=""))
    elif kinds == {True}:
        ruler.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=STEPS))
    ruler.set_label_text(f"{axis.title} (%)" if axis.percent and not axis.title.endswith("(%)") else axis.title)
