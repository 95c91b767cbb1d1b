"""Plots as Plotly's JSON, for the page. Colours are left to draw.js, which knows the theme."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import pandas as pd

from fl_lightning.report.parts import rounded
from fl_lightning.report.plots import BYTES, Axis, Bars, Bubbles, Dots, Heat, Line, Lines, Panels, Plot, Surface
from fl_lightning.runs.pictures import MARKED

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
        number = names.index(mark.method)
        data.append(
            {
                "x": [mark.x],
                "y": rounded([mark.y]),
                "name": f"{mark.method}: {mark.text}",
                "mode": "markers",
                "marker": {"symbol": "diamond", "size": 13},
                "meta": {"method": number, "role": "mark"},
            }
        )
    layout = {"height": HEIGHT, "hovermode": "x", "xaxis": _axis(plot.x), "yaxis": _axis(plot.y)}
    return {"kind": "lines", "rounds": plot.x.title == "round", "data": data, "layout": layout}


def _line(line: Line, number: int) -> list[dict[str, Any]]:
    points, meta = line.points, {"method": number, "variant": line.variant}
    xs = _spaced(points.index.tolist())
    mean = {
        **xs,
        "y": rounded(points["mean"]),
        "name": line.method + (f", {line.variant}" if line.variant else ""),
        "mode": "lines+markers" if len(points) <= MARKED and not line.variant else "lines",
        "line": {"dash": "dot" if line.variant else DASHES[number % len(DASHES)]},
        "marker": {"symbol": MARKS[number % len(MARKS)]},
        "meta": {**meta, "role": "line"},
    }
    if points["seeds"].max() < 2:
        return [mean]
    low = {**xs, "y": rounded(points["low"]), "meta": {**meta, "role": "low"}}
    high = {**xs, "y": rounded(points["high"]), "fill": "tonexty", "meta": {**meta, "role": "high"}}
    return [low, high, mean]


def _spaced(xs: Sequence[float]) -> dict[str, Any]:
    """Return the positions along x; if evenly spaced, as start and step."""
    steps = set(np.diff(xs).tolist())
    return {"x0": xs[0], "dx": steps.pop()} if len(steps) == 1 else {"x": list(xs)}


def _axis(axis: Axis, **more: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"title": {"text": axis.title}, "type": "log" if axis.log else None}
    if axis.title == BYTES:
        described |= {"exponentformat": "SI", "ticksuffix": "B", "automargin": True}
    return {**described, "tickformat": ".3~%" if axis.percent else None, "zeroline": False, **more}


@figure.register
def _(plot: Dots, names: Sequence[str]) -> dict[str, Any]:
    data = [
        {
            "x": rounded(dots["x"]),
            "y": _values(dots["y"]),
            "text": list(dots["name"]),
            "name": method,
            "mode": "markers",
            "marker": {"symbol": MARKS[names.index(method) % len(MARKS)]},
            "meta": {"method": names.index(method), "role": "dots"},
            **({"customdata": dots["client"].tolist()} if "client" in dots else {}),
        }
        for method, dots in plot.dots.items()
    ]
    rows = max((len(dots) for dots in plot.dots.values()), default=0) if _named(plot) else 0
    down = {"type": "category", "autorange": "reversed", "automargin": True} if rows else {}
    layout = {"height": max(HEIGHT, ROW * rows + 90), "hovermode": "closest"}
    return {"kind": "dots", "data": data, "layout": {**layout, "xaxis": _axis(plot.x), "yaxis": _axis(plot.y, **down)}}


def _named(plot: Dots) -> bool:
    return not any(pd.api.types.is_numeric_dtype(dots["y"]) for dots in plot.dots.values())


def _values(values: pd.Series) -> list[Any]:
    return rounded(values) if pd.api.types.is_numeric_dtype(values) else [str(value) for value in values]


@figure.register
def _(plot: Bars, names: Sequence[str]) -> dict[str, Any]:
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": list(plot.parts.index),
            "x": rounded(plot.parts[part]),
            "name": str(part),
            "meta": {"part": number, "role": "part", "methods": [names.index(name) for name in plot.parts.index]},
        }
        for number, part in enumerate(plot.parts)
    ]
    layout = {
        "height": max(200, 60 + 40 * len(plot.parts)),
        "barmode": "stack",
        "hovermode": "y unified",
        "xaxis": _axis(plot.x),
        "yaxis": {"autorange": "reversed", "automargin": True},
    }
    return {"kind": "bars", "data": data, "layout": layout}


@figure.register
def _(plot: Panels, names: Sequence[str]) -> dict[str, Any]:
    """Describe the panels, which explore.js fills in from the chart's frames."""
    return figure(next(iter(plot.panels.values())), names)


@figure.register
def _(plot: Heat, names: Sequence[str]) -> dict[str, Any]:
    scale = {"title": plot.colour.title, "low": plot.low, "high": plot.high, "percent": plot.colour.percent}
    shape = {"square": plot.diverging, "height": max(160, min(560, 14 * len(plot.values)))}
    return {"kind": "heat", "x": plot.x.title, "y": plot.y.title, "diverging": plot.diverging, **shape, "scale": scale}


@figure.register
def _(plot: Surface, names: Sequence[str]) -> dict[str, Any]:
    return {"kind": "surface", "x": "along direction 2", "y": "along direction 1", "square": True}


@figure.register
def _(plot: Bubbles, names: Sequence[str]) -> dict[str, Any]:
    height = max(200, min(480, 24 * plot.counts.shape[1] + 40))
    return {"kind": "bubbles", "x": "client", "y": "class", "square": False, "height": height}
