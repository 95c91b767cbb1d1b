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
        look = {"mode": "markers", "marker": {"symbol": "diamond", "size": 13}}
        meta = {"method": names.index(mark.method), "role": "mark"}
        place = {"x": [mark.x], "y": rounded([mark.y]), "name": f"{mark.method}: {mark.text}"}
        data.append({**place, **look, "meta": meta})
    layout = {"height": HEIGHT, "hovermode": "x", "xaxis": _axis(plot.x), "yaxis": _axis(plot.y)}
    return {"kind": "lines", "rounds": plot.x.title == "round", "data": data, "layout": layout}


def _line(line: Line, number: int) -> list[dict[str, Any]]:
    points, meta = line.points, {"method": number, "variant": line.variant}
    steps, xs = {*np.diff(points.index).tolist()}, points.index.tolist()
    across = {"x0": xs[0], "dx": steps.pop()} if len(steps) == 1 else {"x": xs}  # evenly spaced: start and step
    mean = {
        **across,
        "y": rounded(points["mean"]),
        "name": line.name,
        "mode": "lines+markers" if len(points) <= MARKED_POINTS and not line.variant else "lines",
        "line": {"dash": "dot" if line.variant else DASHES[number % len(DASHES)]},
        "marker": {"symbol": MARKS[number % len(MARKS)]},
        "meta": {**meta, "role": "line"},
    }
    if points["seeds"].max() < 2:
        return [mean]
    low = {**across, "y": rounded(points["low"]), "meta": {**meta, "role": "low"}}
    high = {**across, "y": rounded(points["high"]), "fill": "tonexty", "meta": {**meta, "role": "high"}}
    return [low, high, mean]


def _axis(axis: Axis, **more: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"title": {"text": axis.title}}
    if axis.title == BYTES:
        described |= {"exponentformat": "SI", "ticksuffix": "B", "automargin": True}
    return {**described, "tickformat": ".3~%" if axis.percent else None, "zeroline": False, **more}


@figure.register
def _(plot: Dots, names: Sequence[str]) -> dict[str, Any]:
    data = []
    for method, dots in plot.dots.items():
        number, ys = names.index(method), list(dots["y"]) if plot.categories else rounded(dots["y"])
        look = {"mode": "markers", "marker": {"symbol": MARKS[number % len(MARKS)]}}
        data.append({"x": rounded(dots["x"]), "y": ys, "text": list(dots["name"]), "name": method, **look})
        data[-1]["meta"] = {"method": number, "role": "dots"}
        if "client" in dots:
            data[-1]["customdata"] = dots["client"].tolist()
    rows = max(map(len, plot.dots.values())) if plot.categories else 0
    down = {"type": "category", "autorange": "reversed", "automargin": True} if rows else {}
    layout = {"height": max(HEIGHT, ROW * rows + 90), "hovermode": "closest"}
    return {"kind": "dots", "data": data, "layout": {**layout, "xaxis": _axis(plot.x), "yaxis": _axis(plot.y, **down)}}


@figure.register
def _(plot: Bars, names: Sequence[str]) -> dict[str, Any]:
    bars, methods = list(plot.parts.index), [names.index(name) for name in plot.parts.index]
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
