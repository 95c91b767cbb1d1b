"""Curves over the rounds, and other charts without controls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from rich.filesize import decimal

from fl_lightning.report.methods import Method
from fl_lightning.report.numbers import fewer, plus_minus, thin, written
from fl_lightning.report.parts import CELLS, ROWS, Chart, Table
from fl_lightning.report.plots import BYTES, Axis, Dots, Line, Lines, Mark
from fl_lightning.runs.catalogue import Metric, about
from fl_lightning.runs.seeds import interval

POINTS = 1000  # largest number of points of a curve
ALL_POINTS = 8000  # about the largest number of points of all curves in a chart
ROUND = Axis("round")
CONFLICT = "conflict/ratio"
AFTER = "_after"  # ends the name of a metric of the corrected updates
BEFORE = "before correction"


def curve(metric: str, methods: Sequence[Method]) -> Chart | None:
    """Draw a metric over the rounds, one line per method; None if no run has the metric.

    If runs have the metric after the correction by the rules, too, ``<metric>_after``, both are drawn: the main line is
    after the correction, and a line with the variant "before correction" is added where the correction changed a value.

    Args:
        metric: name of the metric in metrics.csv, before the correction.
        methods: all methods of the page.
    """
    known = about(metric)
    y = Axis(known.axis or known.title, known.percent)
    drawn = []
    for method in methods:
        before, after = method.band(metric), method.band(metric + AFTER)
        changed = len(after) and not _same(before, after)
        drawn += [Line(method.name, after if changed else before)]
        drawn += [Line(method.name, before, BEFORE)] if changed and len(before) else []
    both = any(line.variant for line in drawn)
    caption = f"{known.caption} Dotted lines: before the correction by the rules." if both else known.caption
    title = f"{known.title}, before and after correction" if both else known.title
    return lines(metric, title, caption, drawn, ROUND, y)


def _same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    return one.index.equals(other.index) and bool(np.allclose(one["mean"], other["mean"], atol=1e-6))


def lines(key: str, title: str, caption: str, drawn: Sequence[Line], x: Axis, y: Axis) -> Chart | None:
    """Draw lines, each with a band if there are several seeds.

    Args:
        key: id of the chart, of any characters.
        title: title of the chart.
        caption: caption of the chart.
        drawn: the lines; those without points are left out.
        x: the horizontal axis.
        y: the vertical axis.

    Returns:
        The chart; None if there are no values.
    """
    whole = [line for line in drawn if len(line.points)]
    if not whole:
        return None
    most = min(POINTS, ALL_POINTS // len(whole))
    shown = [replace(line, points=line.points.iloc[thin(len(line.points), most)]) for line in whole]
    longest = max(len(line.points) for line in whole)
    return Chart(
        key=key_of(key),
        title=title,
        caption=(caption + fewer(min(most, longest), longest, "points")).strip(),
        alt=f"Line chart: {title} by {x.title}. " + "; ".join(_last(line, x, y) for line in shown) + ".",
        plot=Lines(x, y, shown),
        numbers=_numbers(title, shown, x, y),
    )


def key_of(name: str) -> str:
    """Make an id of any name."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _called(line: Line) -> str:
    return f"{line.method}, {line.variant}" if line.variant else line.method


def _last(line: Line, x: Axis, y: Axis) -> str:
    last = line.points.iloc[-1]
    seeds = f" over {last['seeds']:.0f} seeds" if last["seeds"] > 1 else ""
    value = plus_minus(last["mean"], last["high"] - last["mean"], y.percent)
    return f"{_called(line)} is {value} at {x.title} {line.points.index[-1]}{seeds}"


def _numbers(title: str, drawn: Sequence[Line], x: Axis, y: Axis) -> Table:
    columns = {
        _called(line): [
            plus_minus(mean, high - mean, y.percent)
            for mean, high in zip(line.points["mean"], line.points["high"], strict=True)
        ]
        for line in drawn
    }
    table = pd.DataFrame(
        {name: pd.Series(columns[name], line.points.index) for line in drawn if (name := _called(line))}
    )
    shown = table.sort_index().iloc[thin(len(table), min(ROWS, max(5, CELLS // len(drawn))))].fillna("–")
    rows = [[str(at), *row] for at, row in zip(shown.index, shown.to_numpy(), strict=True)]
    return Table([x.title, *table.columns], rows, title + fewer(len(shown), len(table), "rows"))


def constant(metric: str, methods: Sequence[Method]) -> str:
    """Return a sentence with a metric's value if the metric never changes in any run of several rounds; else empty."""
    known, spoken = about(metric), {}
    for method in methods:
        values = [each for run in method.runs if metric in run.metrics and len(each := run.metrics[metric].dropna())]
        if any(len(each) < 2 or np.ptp(each.to_numpy()) > 1e-9 * abs(each.iloc[0]) for each in values):
            return ""
        if values:
            spoken[method.name] = _spoken(*interval([each.iloc[-1] for each in values]), known)
    if not spoken:
        return ""
    same = len(set(spoken.values())) == 1
    said = next(iter(spoken.values())) if same else ", ".join(f"{value} ({name})" for name, value in spoken.items())
    called = f" ({known.title})" if known.title != metric else ""
    return f"Constant over all rounds: {metric}{called} = {said}."


def _spoken(mean: float, half: float, known: Metric) -> str:
    if known.axis != BYTES:
        return plus_minus(mean, half, known.percent)
    return decimal(round(mean)) + (f" ± {decimal(round(half))}" if half > 0 else "")


def spectrum(methods: Sequence[Method]) -> Chart | None:
    """Draw the largest eigenvalues of the Hessian at the last measurement; None if there are fewer than two."""
    drawn = []
    for method in methods:
        known = {name for run in method.runs for name in run.names if name.startswith("hessian/eigenvalue_")}
        ranks = sorted(int(name.rpartition("_")[2]) for name in known)
        last = {n: m.iloc[-1] for n in ranks if len(m := method.band(f"hessian/eigenvalue_{n}"))}
        drawn.append(Line(method.name, pd.DataFrame(last).T))
    if all(len(each.points) < 2 for each in drawn):
        return None
    caption = "The largest eigenvalues of the Hessian, at the last measurement."
    return lines(
        "spectrum", "Spectrum of the Hessian", caption, drawn, Axis("number of the eigenvalue"), Axis("eigenvalue")
    )


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
    table = table.loc[_in_order(methods, list(table.index))]
    means_of = "; ".join(f"{name}: {written(table[name].mean(), True)} in the mean of the layers" for name in table)
    dots = {str(name): pd.DataFrame({"x": table[name], "y": table.index, "name": table.index}) for name in table}
    rows = [
        [str(layer), *(written(v, True) for v in row)] for layer, row in zip(table.index, table.values, strict=True)
    ]
    return Chart(
        key="layers",
        title="Conflict ratio by layer",
        caption="Before correction, mean over the rounds; the network's input side at the top.",
        alt=f"Dot plot: conflict ratio of {len(table)} layers. {means_of}.",
        plot=Dots(Axis("conflict ratio", percent=True), Axis("layer"), dots),
        numbers=Table(["layer", *table.columns], rows, "Conflict ratio by layer"),
    )


def _in_order(methods: Sequence[Method], names: Sequence[str]) -> list[str]:
    """Sort layers as in the module, if a run saved that order, else by their numbers."""
    orders = [run.layers() for method in methods for run in method.runs]
    known = {name: place for place, name in enumerate(next(filter(None, orders), []))}
    return sorted(names, key=lambda name: (known.get(name, len(known)), _natural(name)))


def _natural(name: str) -> list[tuple[str, int]]:
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", name)]


def mark(chart: Chart, points: Mapping[str, tuple[int, float]], called: str) -> Chart:
    """Mark one point of each method in a chart of curves, and name the points in the caption.

    Args:
        chart: chart of curves, see :func:`lines`.
        points: x and y of the point, by method.
        called: description of the points for the caption.
    """
    if not points or not isinstance(chart.plot, Lines):
        return chart
    marks = [Mark(name, x, y, called.partition(",")[0]) for name, (x, y) in points.items()]
    spoken = f" Diamond: {called}; " + ", ".join(f"{name} {x}" for name, (x, _) in points.items()) + "."
    plot = replace(chart.plot, marks=marks)
    return replace(chart, caption=chart.caption + spoken, alt=chart.alt + spoken, plot=plot)
