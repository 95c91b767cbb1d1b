"""Plots as Plotly's JSON, for the page. Colours are left to draw.js, which knows the theme."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np

from fl_lightning.report.drawing.plots import BYTES, Axis, Bars, Bubbles, Dots, Heat, Line, Lines, Panels, Plot, Surface
from fl_lightning.report.numbers import rounded
from fl_lightning.runs.pictures import MARKED_POINTS

HEIGHT = 300  # height of a chart in pixels
ROW = 22  # height of a row of dots or of a heat map in pixels
DASHES = ("solid", "dash", "longdash", "dashdot", "longdashdot")  # dotted lines are before the correction
MARKS = ("circle", "square", "triangle-up", "x", "diamond", "cross", "star")


@singledispatch
def figure(plot: Plot, names: Sequence[str]) -> dict[str, Any]:
    """Convert a plot to ``data`` and ``layout`` of Plotly, with the plot's ``kind``.

    A trace's ``meta`` holds what draw.js needs: the number of its ``method`` (the place of the method's name among
    ``names``), its ``role`` (line, low, high, mark, dots, part), and its ``variant``.

    Args:
        plot: the plot.
        names: names of all methods of the page.
    """
    raise TypeError(f"no plot: {type(plot).__name__}")


@figure.register
def _(plot: Lines, names: Sequence[str]) -> dict[str, Any]:
    data = [trace for line in plot.lines for trace in _line(line, names.index(line.method))]
    for mark in plot.marks:
        data.append(
            {
                "x": [mark.x],
                "y": rounded([mark.y]),
                "name": f"{mark.method}: {mark.text}",
                "mode": "markers",
                "marker": {"symbol": "diamond", "size": 13},
                "meta": {"method": names.index(mark.method), "role": "mark"},
            }
        )
    layout = {"height": HEIGHT, "hovermode": "x", "xaxis": _axis(plot.x), "yaxis": _axis(plot.y)}
    return {"kind": "lines", "rounds": plot.x.title == "round", "data": data, "layout": layout}


def _line(line: Line, number: int) -> list[dict[str, Any]]:
    """Describe a line, above the low and the high edge of its band if it has one."""
    points = line.points
    meta = {"method": number, "variant": line.variant}
    xs = points.index.tolist()
    steps = {*np.diff(xs).tolist()}
    across: dict[str, Any] = {"x": xs}
    if len(steps) == 1:  # start and step take less room
        across = {"x0": xs[0], "dx": steps.pop()}
    marked = len(points) <= MARKED_POINTS and not line.variant
    mean = {
        **across,
        "y": rounded(points["mean"]),
        "name": line.name,
        "mode": "lines+markers" if marked else "lines",
        "line": {"dash": "dot" if line.variant else DASHES[number % len(DASHES)]},
        "marker": {"symbol": MARKS[number % len(MARKS)]},
        "meta": {**meta, "role": "line"},
    }
    if points["seeds"].max() < 2:
        return [mean]
    low = {**across, "y": rounded(points["low"]), "meta": {**meta, "role": "low"}}
    high = {**across, "y": rounded(points["high"]), "fill": "tonexty", "meta": {**meta, "role": "high"}}
    return [low, high, mean]


def _axis(axis: Axis) -> dict[str, Any]:
    described: dict[str, Any] = {"title": {"text": axis.title}}
    if axis.title == BYTES:
        described |= {"exponentformat": "SI", "ticksuffix": "B", "automargin": True}
    return {**described, "tickformat": ".3~%" if axis.percent else None, "zeroline": False}


@figure.register
def _(plot: Dots, names: Sequence[str]) -> dict[str, Any]:
    data = []
    for method, dots in plot.dots.items():
        number = names.index(method)
        trace: dict[str, Any] = {
            "x": rounded(dots["x"]),
            "y": list(dots["y"]) if plot.categories else rounded(dots["y"]),
            "text": list(dots["name"]),
            "name": method,
            "mode": "markers",
            "marker": {"symbol": MARKS[number % len(MARKS)]},
            "meta": {"method": number, "role": "dots"},
        }
        if "client" in dots:
            trace["customdata"] = dots["client"].tolist()
        data.append(trace)
    height = HEIGHT
    down = _axis(plot.y)
    if plot.categories:
        rows = max(len(dots) for dots in plot.dots.values())
        height = max(HEIGHT, ROW * rows + 90)
        down |= {"type": "category", "autorange": "reversed", "automargin": True}
    layout = {"height": height, "hovermode": "closest", "xaxis": _axis(plot.x), "yaxis": down}
    return {"kind": "dots", "data": data, "layout": layout}


@figure.register
def _(plot: Bars, names: Sequence[str]) -> dict[str, Any]:
    bars = list(plot.parts.index)
    methods = [names.index(name) for name in bars]
    data = []
    for number, part in enumerate(plot.parts):
        meta = {"part": number, "role": "part", "methods": methods}
        lengths = {"y": bars, "x": rounded(plot.parts[part]), "name": str(part)}
        data.append({"type": "bar", "orientation": "h", **lengths, "meta": meta})
    layout = {"height": max(200, 60 + 40 * len(bars)), "barmode": "stack", "hovermode": "y unified"}
    layout |= {"xaxis": _axis(plot.x), "yaxis": {"autorange": "reversed", "automargin": True}}
    return {"kind": "bars", "data": data, "layout": layout}


@figure.register
def _(plot: Panels, names: Sequence[str]) -> dict[str, Any]:
    """Describe the panels, which explore.js fills in from the chart's frames."""
    return figure(next(iter(plot.panels.values())), names)


@figure.register
def _(plot: Heat, names: Sequence[str]) -> dict[str, Any]:
    return {
        "kind": "heat",
        "x": plot.x.title,
        "y": plot.y.title,
        "diverging": plot.diverging,
        "square": plot.diverging,
        "height": max(160, min(560, 14 * len(plot.values))),
        "scale": {"title": plot.colour.title, "low": plot.low, "high": plot.high, "percent": plot.colour.percent},
    }


@figure.register
def _(plot: Surface, names: Sequence[str]) -> dict[str, Any]:
    return {"kind": "surface", "x": "along direction 2", "y": "along direction 1", "square": True}


@figure.register
def _(plot: Bubbles, names: Sequence[str]) -> dict[str, Any]:
    height = max(200, min(480, 24 * plot.counts.shape[1] + 40))
    return {"kind": "bubbles", "x": "client", "y": "class", "square": False, "height": height}
