"""Curves over the rounds, and other charts without controls, made by Plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.report.methods import Method
from fl_lightning.report.parts import ROWS, Chart, Table, fewer, rounded, thin, written
from fl_lightning.runs.catalogue import about
from fl_lightning.runs.pictures import COLOURS as ALL_COLOURS
from fl_lightning.runs.pictures import MARKED

# The colours of Okabe and Ito with grey in place of black, which a dark page would hide, and faint colours last.
COLOURS = (*ALL_COLOURS[:4], "#808080", *ALL_COLOURS[4:6])
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKS = ("circle", "square", "triangle-up", "x", "diamond", "cross", "star")
POINTS = 1000  # largest number of points of a curve
HEIGHT = 300  # height of a chart in pixels
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def figure(*traces: Any, **layout: Any) -> dict[str, Any]:
    """Make Plotly's ``data`` and ``layout`` in the page's style; page.js sets the colours that depend on the theme."""
    drawn = go.Figure(traces)
    drawn.layout.template = None
    drawn.update_layout(
        height=HEIGHT,
        margin={"l": 60, "r": 12, "t": 8, "b": 46},
        font={"family": FONT, "size": 13},
        legend={"orientation": "h", "x": 0, "y": 1.03, "yanchor": "bottom"},
        hovermode="x unified",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    drawn.update_layout(**layout)
    for update in (drawn.update_xaxes, drawn.update_yaxes):
        update(automargin=True, zeroline=False, title_font_size=13)
    return dict(drawn.to_plotly_json())


def look(number: int) -> dict[str, Any]:
    """Colour, dashes and mark of the method with this number, the same in all charts."""
    colour = COLOURS[number % len(COLOURS)]
    line = {"color": colour, "width": 2, "dash": DASHES[number % len(DASHES)]}
    return {"line": line, "marker": {"color": colour, "symbol": MARKS[number % len(MARKS)], "size": 6}}


def curve(metric: str, methods: Sequence[Method]) -> Chart | None:
    """Draw a metric over the rounds, one line per method; None if no run has the metric.

    Args:
        metric: name of the metric in metrics.csv.
        methods: all methods of the page, so that each method keeps its colour.
    """
    known = about(metric)
    bands = {method.name: method.band(metric) for method in methods}
    return lines(metric, known.title, known.caption, bands, "round", known.percent)


def lines(
    key: str, title: str, caption: str, bands: Mapping[str, pd.DataFrame], axis: str, percent: bool = False
) -> Chart | None:
    """Draw a line for each method, with a band if the method has several seeds.

    Args:
        key: id of the chart, of any characters.
        title: title of the chart.
        caption: caption of the chart.
        bands: one table per method, in the page's order: by x value, with the columns ``mean``, ``low``, ``high`` and
            ``seeds``; empty for a method without values.
        axis: title of the x-axis.
        percent: whether the values are shares.

    Returns:
        The chart; None if there are no values.
    """
    shown = {name: points.iloc[thin(len(points), POINTS)] for name, points in bands.items() if len(points)}
    if not shown:
        return None
    order = list(bands)
    traces = [trace for name in shown for trace in _line(name, shown[name], order.index(name))]
    most = max(len(points) for points in bands.values())
    xs = sorted({x for points in shown.values() for x in points.index})
    layout = {
        "xaxis": {"title": {"text": axis}, "dtick": 1 if len(xs) <= 10 and xs[-1] - xs[0] <= 10 else None},
        "yaxis": {"tickformat": ".3~%" if percent else None},
        "showlegend": len(shown) > 1,
        "height": HEIGHT + 20 * max(0, len(shown) - 4),  # room for the legend
    }
    return Chart(
        key=_id(key),
        title=title,
        caption=(caption + fewer(POINTS, most, "points")).strip(),
        alt=f"Line chart: {title} by {axis}. " + "; ".join(_last(n, p, axis, percent) for n, p in shown.items()) + ".",
        figure=figure(*traces, **layout),
        numbers=_numbers(title, shown, axis, percent),
    )


def _id(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _line(name: str, points: pd.DataFrame, number: int) -> list[Any]:
    style, xs = look(number), points.index.tolist()
    mode = "lines+markers" if len(points) <= MARKED else "lines"
    mean = go.Scatter(x=xs, y=rounded(points["mean"]), name=name, legendgroup=name, mode=mode, **style)
    if points["seeds"].max() < 2:
        return [mean]
    edge = {"x": xs, "mode": "lines", "line": {"width": 0}, "legendgroup": name, "showlegend": False}
    edge |= {"hoverinfo": "skip"}
    low = go.Scatter(y=rounded(points["low"]), **edge)
    fill = {"fill": "tonexty", "fillcolor": _faint(style["line"]["color"])}
    return [low, go.Scatter(y=rounded(points["high"]), **fill, **edge), mean]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _last(name: str, points: pd.DataFrame, axis: str, percent: bool) -> str:
    last = points.iloc[-1]
    text = f"{name} is {written(last['mean'], percent)} at {axis} {points.index[-1]}"
    if last["seeds"] < 2:
        return text
    return (
        f"{text} ({written(last['low'], percent)} to {written(last['high'], percent)} over {last['seeds']:.0f} seeds)"
    )


def _numbers(title: str, bands: Mapping[str, pd.DataFrame], axis: str, percent: bool) -> Table:
    several = {name: points["seeds"].max() > 1 for name, points in bands.items()}
    columns = {
        (name, column): points[column]
        for name, points in bands.items()
        for column in (("mean", "low", "high") if several[name] else ("mean",))
    }
    table = pd.DataFrame(columns)
    shown = table.iloc[thin(len(table), ROWS)]
    words = {"mean": " mean", "low": ", lower end", "high": ", upper end"}
    head = [axis, *(f"{name}{words[column] if several[name] else ''}" for name, column in columns)]
    rows = [
        [str(x), *(written(value, percent) for value in row)] for x, row in zip(shown.index, shown.values, strict=True)
    ]
    return Table(head, rows, title + fewer(len(shown), len(table), "rows"))


def spectrum(methods: Sequence[Method]) -> Chart | None:
    """Draw the largest eigenvalues of the Hessian at the last measurement; None if there are fewer than two."""
    bands = {}
    for method in methods:
        last = {n: m.iloc[-1]["mean"] for n in range(1, 100) if len(m := method.band(f"hessian/eigenvalue_{n}"))}
        bands[method.name] = pd.DataFrame({"mean": last, "low": last, "high": last}).assign(seeds=1)
    if all(len(each) < 2 for each in bands.values()):
        return None
    caption = "The largest eigenvalues of the Hessian when it was last measured; mean over the seeds."
    return lines("spectrum", "Spectrum", caption, bands, "eigenvalue")


def layers(methods: Sequence[Method]) -> Chart | None:
    """Draw the conflict ratio of each layer, averaged over the rounds and runs; None if no run logged the ratios."""
    prefix = "conflict/layer/"
    means = {
        method.name: pd.DataFrame([run.metrics.filter(like=prefix).mean() for run in method.runs]).mean()
        for method in methods
    }
    table = pd.DataFrame({name: values for name, values in means.items() if len(values)})
    if table.empty:
        return None
    table.index = table.index.str.removeprefix(prefix)
    traces = [
        go.Scatter(x=rounded(table[name]), y=list(table.index), name=name, mode="markers", **_dots(number))
        for number, name in enumerate(means)
        if name in table
    ]
    means_of = "; ".join(f"{name}: {written(table[name].mean(), True)} in the mean of the layers" for name in table)
    return Chart(
        key="layers",
        title="Conflict ratio by layer",
        caption="Mean over the rounds, the network's input side at the top.",
        alt=f"Dot plot: conflict ratio of {len(table)} layers. {means_of}.",
        figure=figure(
            *traces,
            height=max(HEIGHT, 22 * len(table) + 90),
            xaxis={"tickformat": ".3~%", "title": {"text": "conflict ratio"}, "rangemode": "tozero"},
            yaxis={"autorange": "reversed", "type": "category"},
            hovermode="closest",
            showlegend=len(traces) > 1,
        ),
        numbers=Table(
            ["layer", *table.columns],
            [
                [str(layer), *(written(v, True) for v in row)]
                for layer, row in zip(table.index, table.values, strict=True)
            ],
            "Conflict ratio by layer",
        ),
    )


def _dots(number: int) -> dict[str, Any]:
    marker = look(number)["marker"]
    return {"marker": marker | {"size": 9}}


def mark(chart: Chart, points: Mapping[str, tuple[int, float]], called: str) -> Chart:
    """Mark one point of each method by a diamond in a chart of curves, and name the points in the caption.

    Args:
        chart: chart of curves, see :func:`lines`.
        points: x and y of the point, by method.
        called: description of the points for the caption.
    """
    if not points:
        return chart
    looks = {trace["name"]: trace["line"]["color"] for trace in chart.figure["data"] if "name" in trace}
    traces = []
    for name, (x, y) in points.items():
        style = {"symbol": "diamond", "size": 13, "color": looks[name], "line": {"width": 1.5, "color": "white"}}
        marked = go.Scatter(x=[x], y=rounded([y]), mode="markers", marker=style, legendgroup=name, showlegend=False)
        traces.append(marked.update(name=f"{name}: {x}").to_plotly_json())
    spoken = f" Diamond: {called}; " + ", ".join(f"{name} {x}" for name, (x, _) in points.items()) + "."
    whole = {**chart.figure, "data": [*chart.figure["data"], *traces]}
    return replace(chart, caption=chart.caption + spoken, alt=chart.alt + spoken, figure=whole)
