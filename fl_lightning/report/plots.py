"""Plots as data: screen.py draws them with Plotly on the page, printed.py with Matplotlib for a paper.

Every plot lists its methods by name. A method has the same colour, dashes and marks in all plots of a page or a paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

BYTES = "bytes"  # title of an axis whose ticks have units: MB, GB
PAPER = "paper"  # text of a Mark at a number that a paper prints


@dataclass(frozen=True)
class Axis:
    """An axis of a plot.

    Attributes:
        title: title of the axis, with the unit in brackets if there is one.
        percent: whether the values are shares, written in per cent.
        log: whether the axis is logarithmic.
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
            ``seeds``, see :func:`fl_lightning.runs.seeds.band`.
        variant: name of the line among several lines of a method, such as "before correction", which is drawn dotted;
            "" for a method's main or only line.
    """

    method: str
    points: pd.DataFrame
    variant: str = ""


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


@dataclass(frozen=True)
class Bars:
    """Stacked horizontal bars, one per row.

    Attributes:
        x: the axis of the lengths.
        parts: lengths of the parts: one row per bar (a method), one column per part.
    """

    x: Axis
    parts: pd.DataFrame


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


@dataclass(frozen=True)
class Surface:
    """The loss on a grid around the global model, drawn as contours with logarithmic colours.

    Attributes:
        steps: (n,) positions along both directions.
        loss: (n, n) the loss; entry [i, j] is at ``steps[i]`` along the first direction and ``steps[j]`` along the
            second.
    """

    steps: NDArray[np.float64]
    loss: NDArray[np.float64]


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
    def drawn(self) -> list[str] | None:
        """The names of the clients that are drawn."""
        return None if self.names is None else list(self.names[: len(self.counts)])


@dataclass(frozen=True)
class Panels:
    """Plots of one kind side by side, which share axes, scale of colours and legend.

    Attributes:
        panels: the plots, by title.
        shared: whether panels of the same y-axis have the same range of y.
        columns: number of panels in a row; 0 for a nearly square grid.
    """

    panels: Mapping[str, Lines | Heat | Surface | Bubbles]
    shared: bool = True
    columns: int = 0


Plot = Lines | Dots | Bars | Heat | Surface | Bubbles | Panels
