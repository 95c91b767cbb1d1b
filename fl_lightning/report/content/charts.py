"""Charts of metrics: curves over the rounds, eigenvalues, layers, and heat maps of clients or classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from rich.filesize import decimal

from fl_lightning.report.compared.long_table import long_table
from fl_lightning.report.compared.methods import Method, metric_names
from fl_lightning.report.content.by_round import (
    client_name,
    client_names,
    divide_frames,
    names_of,
    runs_with,
    seed_of,
    table_of_frames,
)
from fl_lightning.report.drawing.plots import BYTES, Axis, Dots, Heat, Line, Lines, Mark, Panels
from fl_lightning.report.elements import CELLS, ROWS, Chart, Frame, Frames, FramesOfRun, Table
from fl_lightning.report.numbers import fewer, plus_minus, rounded, thin, written
from fl_lightning.report.statistics import interval
from fl_lightning.runs.catalogue import AFTER, about, corrected
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
EIGENVALUE = "hessian/eigenvalue_"  # beginning of the names of the eigenvalues' metrics
LAYER = "conflict/layer/"  # beginning of the names of the layers' metrics
CORRECTED = ", after correction"
LAYER_AFTER = f"conflict/layer{AFTER}/"  # that of the metrics of the layers' corrected updates


@dataclass(frozen=True)
class NumberedMetrics:
    """Metrics ``prefix/<n>`` that are drawn together, as a heat map over the rounds.

    Attributes:
        prefix: prefix of the metrics.
        item: word for the thing that n numbers: "client" or "class".
        title: title of the chart.
        caption: caption of the chart.
        percent: whether the values are shares.
    """

    prefix: str
    item: str
    title: str
    caption: str
    percent: bool = False


@dataclass(frozen=True)
class Cells:
    """The cells of a heat map over the rounds, as explore.js reads them.

    Attributes:
        x: the rounds.
        y: numbers of the clients or classes.
        z: a row of values for each client or class, with a value for each round; None if there is no value.
    """

    x: Sequence[int]
    y: Sequence[int]
    z: Sequence[Sequence[float | None]]


def curve(metric: str, methods: Sequence[Method]) -> Chart | None:
    """Draw a metric over the rounds, one line per method; None if no run has the metric. The coherence has marks.

    If runs have the metric after the correction by the rules, too, both are drawn: the main line is after the
    correction, and a line with the variant "before correction" is added where the correction changed a value.

    Args:
        metric: name of the metric in metrics.csv, before the correction.
        methods: all methods of the page.
    """
    known = about(metric)
    of_corrected = corrected(metric)
    drawn = []
    for method in methods:
        before = method.band(metric)
        after = method.band(of_corrected) if of_corrected else before[:0]
        if not len(after) or _are_alike(before, after):
            drawn.append(Line(method.name, before))
            continue
        drawn.append(Line(method.name, after))
        if len(before):
            drawn.append(Line(method.name, before, BEFORE))
    title = known.title
    caption = known.caption
    if any(line.variant for line in drawn):
        title += ", before and after correction"
        caption += f" {DOTTED}"
    y = Axis(known.axis or known.title, known.percent)
    marks = _critical_rounds(methods) if metric == COHERENCE else ()
    return line_chart(metric, title, caption, drawn, ROUND, y, marks)


def _are_alike(before: pd.DataFrame, after: pd.DataFrame) -> bool:
    """Tell whether two bands have the same rounds, and means that differ by rounding errors alone."""
    return before.index.equals(after.index) and bool(np.allclose(before["mean"], after["mean"], atol=1e-6))


def _critical_rounds(methods: Sequence[Method]) -> list[Mark]:
    marks = []
    for method in methods:
        mean = method.band(COHERENCE)["mean"]
        place = critical_round(mean.tolist())  # among the recorded rounds, from 1
        if place is not None:
            marks.append(Mark(method.name, int(mean.index[place - 1]), float(mean.iloc[place - 1]), CRITICAL))
    return marks


def line_chart(
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
    lines = [line for line in drawn if len(line.points)]
    if not lines:
        return None
    longest = max(len(line.points) for line in lines)
    most = min(POINTS, ALL_POINTS // len(lines))
    shown = [replace(line, points=line.points.iloc[thin(len(line.points), most)]) for line in lines]
    texts = {line.name: _points_as_text(line.points, y) for line in shown}
    ends = "; ".join(_end_of(line, texts[line.name], x) for line in shown)
    said = ""
    if marks:
        said = MARKED + ", ".join(f"{mark.method} {mark.x}" for mark in marks) + "."
    return Chart(
        key="".join(letter if letter.isalnum() else "-" for letter in key),
        title=title,
        caption=(caption + fewer(min(most, longest), longest, "points")).strip() + said,
        alt=f"Line chart: {title} by {x.title}. {ends}.{said}",
        plot=Lines(x, y, shown, marks),
        numbers=_table_of_lines(title, pd.DataFrame(texts), x),
    )


def _points_as_text(points: pd.DataFrame, y: Axis) -> pd.Series:
    """Write the mean of each point and half the width of its interval."""
    means = points["mean"]
    halves = points["high"] - means
    texts = [plus_minus(mean, half, y.percent) for mean, half in zip(means, halves, strict=True)]
    return pd.Series(texts, points.index, dtype=str)


def _end_of(line: Line, texts: pd.Series, x: Axis) -> str:
    """Say where a line ends."""
    end = f"{line.name} is {texts.iloc[-1]} at {x.title} {texts.index[-1]}"
    seeds = line.points["seeds"].iloc[-1]
    return f"{end} over {seeds:.0f} seeds" if seeds > 1 else end


def _table_of_lines(title: str, texts: pd.DataFrame, x: Axis) -> Table:
    """Tabulate the points of lines: a row for each x, as many as a table can hold."""
    most = min(ROWS, max(5, CELLS // texts.shape[1]))
    shown = texts.sort_index().iloc[thin(len(texts), most)].fillna("–")
    rows = [[str(place), *row] for place, row in zip(shown.index, shown.to_numpy(), strict=True)]
    return Table([x.title, *texts.columns], rows, title + fewer(len(shown), len(texts), "rows"))


def say_constant(metric: str, methods: Sequence[Method]) -> str:
    """Return a sentence with a metric's value if the metric never changes in any run of several rounds; else empty."""
    known = about(metric)
    values: dict[str, str] = {}
    for method in methods:
        columns = list(method.series(metric).values())
        if not all(_is_constant(column) for column in columns):
            return ""
        if columns:
            mean, half = interval([column.iloc[-1] for column in columns])
            values[method.name] = _size(mean, half) if known.axis == BYTES else plus_minus(mean, half, known.percent)
    if not values:
        return ""
    name = metric if known.title == metric else f"{metric} ({known.title})"
    said = ", ".join(f"{value} ({method})" for method, value in values.items())
    if len(set(values.values())) == 1:
        said = next(iter(values.values()))
    return f"Constant over all rounds: {name} = {said}."


def _is_constant(column: pd.Series) -> bool:
    """Tell whether a metric of one run has several values that differ by rounding errors alone."""
    if len(column) < 2:
        return False
    return not np.ptp(column.to_numpy()) > 1e-9 * abs(column.iloc[0])


def _size(mean: float, half: float) -> str:
    """Write a number of bytes, and half the width of its interval if there is one."""
    size = decimal(round(mean))
    return f"{size} ± {decimal(round(half))}" if half > 0 else size


def spectrum(methods: Sequence[Method]) -> Chart | None:
    """Draw the largest eigenvalues of the Hessian at the last measurement; None if there are fewer than two."""
    drawn = []
    for method in methods:
        names = {name for run in method.runs for name in run.names if name.startswith(EIGENVALUE)}
        last = {}
        for rank in sorted(int(name.rpartition("_")[2]) for name in names):
            points = method.band(f"{EIGENVALUE}{rank}")
            if len(points):
                last[rank] = points.iloc[-1]
        drawn.append(Line(method.name, pd.DataFrame(last).T))
    if all(len(line.points) < 2 for line in drawn):
        return None
    caption = "The largest eigenvalues of the Hessian, at the last measurement."
    number = Axis("number of the eigenvalue")
    return line_chart("spectrum", "Spectrum of the Hessian", caption, drawn, number, Axis("eigenvalue"))


def layers(methods: Sequence[Method]) -> Chart | None:
    """Draw the conflict ratio of each layer before correction; the chart's numbers have those after correction, too.

    Returns:
        The chart of the means over rounds and runs; None if no run logged the ratios.
    """
    before, after = (_ratios_by_layer(methods, beginning) for beginning in (LAYER, LAYER_AFTER))
    if before.empty:
        return None
    layers = in_order(methods, list(before.index.union(after.index)))
    before, after = before.reindex(layers), after.reindex(layers)
    spoken = "; ".join(f"{name}: {written(before[name].mean(), True)} in the mean of the layers" for name in before)
    dots: dict[str, pd.DataFrame] = {}
    for name in map(str, before):
        told = layers
        if name in after:
            told = [f"{layer}{CORRECTED}: {written(after[name][layer], True)}" for layer in layers]
        dots[name] = pd.DataFrame({"x": before[name], "y": layers, "name": told})
    table = before.join(after.add_suffix(CORRECTED))
    table = table[[name for method in before for name in (method, f"{method}{CORRECTED}") if name in table]]
    rows = [[str(layer), *(written(ratio, True) for ratio in ratios)] for layer, *ratios in table.itertuples()]
    return Chart(
        key="layers",
        title="Conflict ratio by layer",
        caption="Before correction, mean over the rounds; the network's input side at the top.",
        alt=f"Dot plot: conflict ratio of {len(table)} layers. {spoken}.",
        plot=Dots(Axis("conflict ratio", percent=True), Axis("layer"), dots),
        numbers=Table(["layer", *table.columns], rows, "Conflict ratio by layer"),
    )


def _ratios_by_layer(methods: Sequence[Method], beginning: str) -> pd.DataFrame:
    """Tabulate the ratios whose names begin so, a row a layer and a column a method: means over rounds and runs."""
    means = {}
    for method in methods:
        names = [name for name in metric_names([method]) if name.startswith(beginning)]
        of_runs = long_table(method.runs, names).groupby(["run", "metric"])["value"].mean()
        mean = of_runs.groupby("metric").mean()
        if len(mean):
            means[method.name] = mean.rename(index=lambda name: name.removeprefix(beginning))
    return pd.DataFrame(means)


def in_order(methods: Sequence[Method], names: Sequence[str]) -> list[str]:
    """Sort layers as in the module, if a run saved that order, else by their numbers."""
    saved = [run.layers() for method in methods for run in method.runs]
    order = next((names for names in saved if names), [])
    places = {name: place for place, name in enumerate(order)}
    return sorted(names, key=lambda name: (places.get(name, len(places)), natural(name)))


def over_rounds(methods: Sequence[Method], metrics: NumberedMetrics) -> Chart | None:
    """Draw a heat map of numbered metrics over the rounds for each method; None if there are none, or none changes.

    All maps share one scale of colours from 0 to at least twice the even share, so that noise around it stays pale.

    Args:
        methods: the methods of the page.
        metrics: the metrics to draw.
    """
    every = runs_with(methods, lambda run: run.items(metrics.prefix))
    if not every or say_constant_items(methods, metrics):
        return None
    tables = [run.items(metrics.prefix) for _, run in every]
    rounds = max(len(table) for table in tables)
    items = max(table.shape[1] for table in tables)
    shown, most = divide_frames(every, MAP_CELLS // min(items, MAPPED), min(rounds, MAP_ROUNDS))
    most = min(most, MAP_ROUNDS)
    panels = list(dict.fromkeys(panel for panel, _ in every))
    names = client_names(methods) if metrics.item == "client" else None
    colour = Axis("share" if metrics.percent else "weight", metrics.percent)
    high = max(2 / items, *(float(np.nanmax(table.to_numpy())) for table in tables))
    runs = []
    printed: dict[str, Heat] = {}
    for panel, run in shown:
        table = run.items(metrics.prefix)
        values = table.iloc[thin(len(table), most), :MAPPED].T
        cells = Cells(
            x=[int(number) for number in values.columns],
            y=values.index.tolist(),
            z=[rounded(row, 3) for row in values.to_numpy()],
        )
        frame = Frame([_summary_of_items(table, metrics, names)], cells)
        runs.append(FramesOfRun(panels.index(panel), seed_of(run), [frame]))
        called = values.set_axis(names_of(values.index, names))
        printed.setdefault(panel, Heat(ROUND, Axis(metrics.item), called, colour, 0.0, high))
    frames = Frames(panels, runs)
    caption = metrics.caption + fewer(min(rounds, most), rounds, "rounds")
    if items > MAPPED:
        caption += f" (the first {MAPPED} of {items:,} are drawn)"
    return Chart(
        key=metrics.prefix.replace("/", "-"),
        title=metrics.title,
        caption=caption,
        alt=f"Heat map: {metrics.title}, by {metrics.item} and round",
        plot=Panels(printed),
        numbers=table_of_frames(frames, f"{metrics.title}, last round"),
        frames=frames,
        wide=True,
    )


def say_constant_items(methods: Sequence[Method], metrics: NumberedMetrics) -> str:
    """Return a sentence if numbered metrics never change in any run of several rounds; else empty."""
    tables = [run.items(metrics.prefix) for _, run in runs_with(methods, lambda run: run.items(metrics.prefix))]
    if not tables:
        return ""
    for table in tables:
        if len(table) < 2 or (table.max() - table.min()).max() > 1e-9:
            return ""
    return f"Constant over all rounds: {metrics.prefix}/* ({metrics.title})."


def _summary_of_items(table: pd.DataFrame, metrics: NumberedMetrics, names: Sequence[str] | None) -> dict[str, str]:
    """Say which client or class has the largest and the smallest value in the last round."""
    last = table.iloc[-1].dropna()
    ends = {"largest in the last round": last.idxmax(), "smallest": last.idxmin()}
    text = {}
    for title, column in ends.items():
        number = int(str(column))
        text[title] = f"{written(last[number], metrics.percent)} ({metrics.item} {client_name(number, names)})"
    return text
