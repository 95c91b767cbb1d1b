"""Plots as data: on_page.py draws them with Plotly on the page, on_paper.py with Matplotlib for a paper.

Every plot lists its methods by name. A method has the same colour, dashes and marks in all plots of a page or a paper.
The ``table`` of a plot has a row for each drawn point, bar, cell or bubble, and columns with the titles of the axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_lightning.runs.pictures import BOX, SURE

BYTES = "bytes"  # title of an axis whose ticks have units: MB, GB
PAPER = "paper"  # text of a Mark at a number that a paper prints


@dataclass(frozen=True)
class Axis:
    """An axis of a plot.

    Attributes:
        title: title of the axis, with the unit in brackets if there is one.
        percent: whether the values are shares, written in per cent.
        log: whether an x-axis of lines is logarithmic in print, with a tick at each point.
    """

    title: str
    percent: bool = False
    log: bool = False


@dataclass(frozen=True)
class Line:
    """A method's line, with a band if there are several seeds.

    Attributes:
        method: name of the method.
        points: by x value, the columns ``mean``, ``low``, ``high`` (edges of the 95 % t interval, nan for one seed) and
            ``seeds``, see :func:`fl_lightning.report.statistics.band`.
        variant: name of the line among several lines of a method, such as "before correction", which is drawn dotted;
            "" for a method's main or only line.
    """

    method: str
    points: pd.DataFrame
    variant: str = ""

    @property
    def name(self) -> str:
        """The names of the method and of the variant."""
        return f"{self.method}, {self.variant}" if self.variant else self.method


@dataclass(frozen=True)
class Mark:
    """A marked point of a plot of lines.

    Attributes:
        method: name of the method that the point belongs to.
        x: position on the x-axis.
        y: position on the y-axis.
        text: description of the point, such as "critical round" or PAPER.
    """

    method: str
    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Lines:
    """Lines over the rounds, or over another quantity."""

    x: Axis
    y: Axis
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()

    def table(self) -> pd.DataFrame:
        """Tabulate ``mean``, ``low``, ``high``, ``seeds`` of the points; marked points have ``mean`` and ``mark``."""
        title = self.x.title
        tables = []
        for line in self.lines:
            points = line.points.rename_axis(title).reset_index()
            tables.append(points.assign(method=line.method, variant=line.variant, mark=""))
        marks = [{"method": mark.method, title: mark.x, "mean": mark.y, "mark": mark.text} for mark in self.marks]
        numbers = pd.concat([*tables, pd.DataFrame(marks)], ignore_index=True).fillna({"variant": ""})
        if not numbers["variant"].any():
            numbers = numbers.drop(columns="variant")
        if not marks:
            numbers = numbers.drop(columns="mark")
        return _with_first(numbers, "method", "variant")


@dataclass(frozen=True)
class Dots:
    """Dots that are not connected.

    Attributes:
        x: the horizontal axis.
        y: the vertical axis.
        dots: by method, the columns ``x``, ``y`` (numbers, or names of categories) and ``name`` (what the dot stands
            for, such as "client 7"), and, where the dots are clients, ``client`` (the client's id).
    """

    x: Axis
    y: Axis
    dots: Mapping[str, pd.DataFrame]

    @property
    def categories(self) -> list[str]:
        """The names of categories along the y-axis; none if y are numbers."""
        return list(dict.fromkeys(y for dots in self.dots.values() for y in dots["y"] if isinstance(y, str)))

    def table(self) -> pd.DataFrame:
        """Tabulate the dots, and what they stand for."""
        titles = {"x": self.x.title, "y": self.y.title}
        every = [dots.rename(columns=titles).assign(method=method) for method, dots in self.dots.items()]
        return _with_first(pd.concat(every, ignore_index=True), "method")


@dataclass(frozen=True)
class Bars:
    """Stacked horizontal bars, one per row.

    Attributes:
        x: the axis of the lengths.
        parts: lengths of the parts: one row per bar (a method), one column per part.
    """

    x: Axis
    parts: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """Tabulate the parts."""
        return _table_of_cells(self.parts, "method", "part", self.x.title)


@dataclass(frozen=True)
class Heat:
    """A heat map.

    Attributes:
        x: the horizontal axis.
        y: the vertical axis; the first row is at the top.
        values: the cells; the index names the rows, the columns name the columns.
        colour: title of the scale of colours.
        low: value at the lower end of the scale.
        high: value at the upper end of the scale.
        diverging: whether the middle of the scale is neutral, and its ends are opposites.
    """

    x: Axis
    y: Axis
    values: pd.DataFrame
    colour: Axis
    low: float
    high: float
    diverging: bool = False

    def table(self) -> pd.DataFrame:
        """Tabulate the cells."""
        across = self.x.title if self.x.title != self.y.title else f"other {self.y.title}"
        return _table_of_cells(self.values, self.y.title, across, self.colour.title)


@dataclass(frozen=True)
class Surface:
    """The loss on a grid around the global model, drawn as contours with logarithmic colours.

    Attributes:
        steps: (n,) positions along both directions.
        loss: (n, n) the loss; entry [i, j] is at ``steps[i]`` along the first direction and ``steps[j]`` along the
            second.
        x: title of the first direction.
        y: title of the second direction.
        dots: the columns ``x`` and ``y``, by round, of dots that are drawn in print: where the loss is lowest.
        outline: (m, 2) corners of a polygon outside of which nothing is drawn in print.
    """

    steps: NDArray[np.float64]
    loss: NDArray[np.float64]
    x: str = "along direction 1"
    y: str = "along direction 2"
    dots: pd.DataFrame | None = None
    outline: NDArray[np.float64] | None = None

    def table(self) -> pd.DataFrame:
        """Tabulate the loss by the steps along both directions, and the dots by their rounds."""
        grid = _table_of_cells(pd.DataFrame(self.loss, self.steps, self.steps), "d1", "d2", "loss")
        if self.dots is None:
            return grid
        dots = self.dots.rename(columns={"x": "d1", "y": "d2"}).rename_axis("lowest in round").reset_index()
        return pd.concat([grid, dots], ignore_index=True)


@dataclass(frozen=True)
class Bubbles:
    """Examples of each class at each client, as bubbles whose area is the number of examples.

    Attributes:
        counts: (N, C) number of examples.
        names: names of the clients, at least N; None for numbers.
    """

    counts: NDArray[np.int64]
    names: Sequence[str] | None = None

    @property
    def drawn_names(self) -> list[str] | None:
        """The names of the clients that are drawn."""
        return None if self.names is None else list(self.names[: len(self.counts)])

    def table(self) -> pd.DataFrame:
        """Tabulate the numbers of examples."""
        return _table_of_cells(pd.DataFrame(self.counts, self.drawn_names), "client", "class", "examples")


@dataclass(frozen=True)
class Boxes:
    """Images side by side, with boxes around what was detected and around the true objects; drawn in print alone.

    Attributes:
        images: (n, 3, H, W) the images, uint8.
        boxes: (m, 7) the boxes, with the columns BOX of runs/pictures.py.
    """

    images: NDArray[np.uint8]
    boxes: NDArray[np.float64]

    def table(self) -> pd.DataFrame:
        """Tabulate the boxes that are drawn; the score of a true object is empty."""
        boxes = pd.DataFrame(self.boxes, columns=list(BOX))
        return boxes[~(boxes["score"] < SURE)].astype({"image": int, "class": int})


@dataclass(frozen=True)
class Panels:
    """Plots of one kind side by side, which share axes, scale of colours and legend.

    Attributes:
        panels: the plots, by title.
        shared: whether panels of the same y-axis have the same range of y.
        columns: number of panels in a row; 0 for a nearly square grid.
    """

    panels: Mapping[str, Lines | Heat | Surface | Bubbles | Boxes]
    shared: bool = True
    columns: int = 0

    def table(self) -> pd.DataFrame:
        """Tabulate all panels; the column ``panel`` has their titles."""
        every = [plot.table().assign(panel=title) for title, plot in self.panels.items()]
        return _with_first(pd.concat(every, ignore_index=True), "panel")


def _table_of_cells(grid: pd.DataFrame, down: str, across: str, value: str) -> pd.DataFrame:
    """Tabulate a grid, a row for each cell; the names are those of the columns."""
    return grid.rename_axis(down).reset_index().melt(down, None, across, value)


def _with_first(numbers: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Put the columns with these names first, those that there are."""
    first = [name for name in names if name in numbers]
    return numbers[[*first, *(name for name in numbers if name not in first)]]


Plot = Lines | Dots | Bars | Heat | Surface | Bubbles | Boxes | Panels
