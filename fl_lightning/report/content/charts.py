"""Charts of metrics: curves over the rounds, eigenvalues, layers, and heat maps of clients or classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import add
from typing import Any

import numpy as np
import pandas as pd
from rich.filesize import decimal

from fl_lightning.report.compared.methods import Method
from fl_lightning.report.content.by_round import client_name, client_names, named, runs_with, seed_of, share, tabulated
from fl_lightning.report.drawing.plots import BYTES, Axis, Dots, Heat, Line, Lines, Mark, Panels
from fl_lightning.report.elements import CELLS, ROWS, Chart, Frames, Table
from fl_lightning.report.numbers import fewer, plus_minus, rounded, thin, written
from fl_lightning.report.statistics import interval
from fl_lightning.runs.catalogue import AFTER, about
from fl_lightning.runs.critical_round import critical_round
from fl_lightning.runs.reader import natural

POINTS = 1000  # largest number of points of a curve
ALL_POINTS = 8000  # about the largest number of points of all curves in a chart
MAPPED = 200  # largest number of clients or classes in a heat map
MAP_ROUNDS = 100  # largest number of rounds in a heat map
MAP_CELLS = 100_000  # largest number of cells in all heat maps of a chart
ROUND = Axis("round")
BEFORE = "before correction"
DOTTED = "Dotted lines: before the correction by the rules."
COHERENCE = "coherence/local"
CRITICAL = "critical round"
MARKED = f" Diamond: {CRITICAL}, the first with a negative mean over five rounds; "


def curve(metric: str, methods: Sequence[Method]) -> Chart | None:
    """Draw a metric over the rounds, one line per method; None if no run has the metric. The coherence has marks.

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
    title, caption = known.title, known.caption
    if any(line.variant for line in drawn):
        title, caption = f"{title}, before and after correction", f"{caption} {DOTTED}"
    marks = _critical_rounds(methods) if metric == COHERENCE else ()
    return lines(metric, title, caption, drawn, ROUND, y, marks)


def _same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    return one.index.equals(other.index) and bool(np.allclose(one["mean"], other["mean"], atol=1e-6))


def _critical_rounds(methods: Sequence[Method]) -> list[Mark]:
    means = {method.name: method.band(COHERENCE)["mean"] for method in methods}
    found = [(name, mean, at) for name, mean in means.items() if (at := critical_round(mean.tolist())) is not None]
    return [Mark(name, int(mean.index[at - 1]), float(mean.iloc[at - 1]), CRITICAL) for name, mean, at in found]


def lines(
    key: str, title: str, caption: str, drawn: Sequence[Line], x: Axis, y: Axis, marks: Sequence[Mark] = ()
) -> Chart | None:
    """Draw lines, each with a band if there are several seeds.

    Args:
        key: id of the chart, of any characters.
        title: title of the chart.
        caption: caption of the chart.
        drawn: the lines; those without points are left out.
        x: the horizontal axis.
        y: the vertical axis.
        marks: the critical rounds.

    Returns:
        The chart; None if there are no values.
    """
    whole = [line for line in drawn if len(line.points)]
    if not whole:
        return None
    most = min(POINTS, ALL_POINTS // len(whole))
    shown = [replace(line, points=line.points.iloc[thin(len(line.points), most)]) for line in whole]
    longest = max(len(line.points) for line in whole)
    texts = {line.name: _texts(line.points, y) for line in shown}
    ends = [f"{name} is {points.iloc[-1]} at {x.title} {points.index[-1]}" for name, points in texts.items()]
    seeds = [f" over {of:.0f} seeds" if (of := line.points["seeds"].iloc[-1]) > 1 else "" for line in shown]
    said = MARKED + ", ".join(f"{mark.method} {mark.x}" for mark in marks) + "." if marks else ""
    return Chart(
        key="".join(letter if letter.isalnum() else "-" for letter in key),
        title=title,
        caption=(caption + fewer(min(most, longest), longest, "points")).strip() + said,
        alt=f"Line chart: {title} by {x.title}. {'; '.join(map(add, ends, seeds))}.{said}",
        plot=Lines(x, y, shown, marks),
        numbers=_numbers(title, pd.DataFrame(texts), x),
    )


def _texts(points: pd.DataFrame, y: Axis) -> pd.Series:
    halves = points["high"] - points["mean"]
    return pd.Series(
        [plus_minus(*each, y.percent) for each in zip(points["mean"], halves, strict=True)], points.index, dtype=str
    )


def _numbers(title: str, table: pd.DataFrame, x: Axis) -> Table:
    shown = table.sort_index().iloc[thin(len(table), min(ROWS, max(5, CELLS // table.shape[1])))].fillna("–")
    rows = [[str(at), *row] for at, row in zip(shown.index, shown.to_numpy(), strict=True)]
    return Table([x.title, *table.columns], rows, title + fewer(len(shown), len(table), "rows"))


def constant(metric: str, methods: Sequence[Method]) -> str:
    """Return a sentence with a metric's value if the metric never changes in any run of several rounds; else empty."""
    known, spoken = about(metric), {}
    for method in methods:
        values = list(method.series(metric).values())
        if any(len(each) < 2 or np.ptp(each.to_numpy()) > 1e-9 * abs(each.iloc[0]) for each in values):
            return ""
        if values:
            mean, half = interval([each.iloc[-1] for each in values])
            size = decimal(round(mean)) + (f" ± {decimal(round(half))}" if half > 0 else "")
            spoken[method.name] = size if known.axis == BYTES else plus_minus(mean, half, known.percent)
    if not spoken:
        return ""
    same = len(set(spoken.values())) == 1
    said = next(iter(spoken.values())) if same else ", ".join(f"{value} ({name})" for name, value in spoken.items())
    called = f" ({known.title})" if known.title != metric else ""
    return f"Constant over all rounds: {metric}{called} = {said}."


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
    x, y = Axis("number of the eigenvalue"), Axis("eigenvalue")
    return lines("spectrum", "Spectrum of the Hessian", caption, drawn, x, y)


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
    rows = [[str(layer), *(written(value, True) for value in row)] for layer, *row in table.itertuples()]
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
    return sorted(names, key=lambda name: (known.get(name, len(known)), natural(name)))


def over_rounds(
    methods: Sequence[Method], prefix: str, item: str, title: str, caption: str, percent: bool = False
) -> Chart | None:
    """Draw a heat map of the metrics ``prefix/<n>`` over the rounds for each method.

    All maps share one scale of colours from 0 to at least twice the even share, so that noise around it stays pale.

    Args:
        methods: the methods of the page.
        prefix: prefix of the metrics.
        item: word for the thing that n numbers: "client" or "class".
        title: title of the chart.
        caption: caption of the chart.
        percent: whether the values are shares.
    """
    every = runs_with(methods, lambda run: run.items(prefix))
    if not every or constant_items(methods, prefix, title):
        return None
    tables = [run.items(prefix) for _, run in every]
    rounds, items = (max(table.shape[axis] for table in tables) for axis in (0, 1))
    shown, most = share(every, MAP_CELLS // min(items, MAPPED), min(rounds, MAP_ROUNDS))
    most, panels = min(most, MAP_ROUNDS), list(dict.fromkeys(panel for panel, _ in every))
    high = max(2 / items, *(float(np.nanmax(table.to_numpy())) for table in tables))
    colour, axes = Axis("share" if percent else "weight", percent), (Axis("round"), Axis(item))
    names = client_names(methods) if item == "client" else None
    printed: dict[str, Heat] = {}
    runs = []
    for panel, run in shown:
        table = run.items(prefix)
        values = table.iloc[thin(len(table), most), :MAPPED].T
        frame = _frame(table, values, item, percent, names)
        runs.append({"panel": panels.index(panel), "seed": seed_of(run), "frames": [frame]})
        cells = values.set_axis(named(values.index, names))
        printed.setdefault(panel, Heat(*axes, cells, colour, 0.0, high))
    frames, cut = Frames(panels, runs), f" (the first {MAPPED} of {items:,} are drawn)" if items > MAPPED else ""
    return Chart(
        key=prefix.replace("/", "-"),
        title=title,
        caption=caption + fewer(min(rounds, most), rounds, "rounds") + cut,
        alt=f"Heat map: {title}, by {item} and round",
        plot=Panels(printed),
        numbers=tabulated(frames, f"{title}, last round"),
        frames=frames,
        wide=True,
    )


def constant_items(methods: Sequence[Method], prefix: str, title: str) -> str:
    """Return a sentence if the metrics ``prefix/<n>`` never change in any run of several rounds; else empty."""
    tables = [table for method in methods for run in method.runs if len(table := run.items(prefix))]
    if not tables or any(len(table) < 2 or (table.max() - table.min()).max() > 1e-9 for table in tables):
        return ""
    return f"Constant over all rounds: {prefix}/* ({title})."


def _frame(
    table: pd.DataFrame, shown: pd.DataFrame, item: str, percent: bool, names: Sequence[str] | None
) -> dict[str, Any]:
    last = table.iloc[-1].dropna()
    ends = {"largest in the last round": int(str(last.idxmax())), "smallest": int(str(last.idxmin()))}
    text = {title: f"{written(last[at], percent)} ({item} {client_name(at, names)})" for title, at in ends.items()}
    z = [rounded(row, 3) for row in shown.to_numpy()]
    return {"text": [text], "x": shown.columns.tolist(), "y": shown.index.tolist(), "z": z}
