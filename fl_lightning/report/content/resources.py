"""Charts of time, memory and bytes, and the axes of seconds and bytes for all curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from fl_lightning.report.compared.long_table import values_by_round
from fl_lightning.report.compared.methods import Method
from fl_lightning.report.content.charts import ROUND, line_chart
from fl_lightning.report.drawing.plots import Axis, Bars, Line
from fl_lightning.report.elements import Chart, OtherAxis, Table
from fl_lightning.report.numbers import rounded, written
from fl_lightning.report.statistics import band
from fl_lightning.runs.reader import Run

# Columns of a run's timings, each with the name of the part of a round that the column measures.
PARTS = {
    "local": "local training",
    "server": "server",
    "monitors": "monitors",
    "rest": "evaluation, logs, checkpoints",
}
BYTES = "bytes/total"
MEASURED = "Measured at the end of each round."
# Columns of a run's timings with a chart by round: title, caption, axis, and the column's value that is 1 on the axis.
BY_ROUND = {
    "seconds": ("Time by round", "Wall time of each round.", Axis("seconds"), 1),
    "waiting": (
        "Waiting devices",
        "Seconds of local training in which devices waited, their mean.",
        Axis("seconds"),
        1,
    ),
    "memory_mib": ("Memory of the process", MEASURED, Axis("GiB"), 1024),
    "gpu_mib": ("Peak memory on the GPU", MEASURED, Axis("GiB"), 1024),
}
TIMES = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))  # units in seconds; used for times of 3 units or more
SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def time_of_round(methods: Sequence[Method]) -> Chart | None:
    """Draw the seconds of a round by part, median over the rounds, one bar per method."""
    medians = {}
    for method in methods:
        timings = [run.timings for run in method.runs if len(run.timings)]
        if timings:
            means = pd.concat(timings).groupby(level=0).mean()
            medians[method.name] = means[list(PARTS)].median()
    if not medians:
        return None
    parts = pd.DataFrame(medians).T.rename(columns=PARTS)
    rows = []
    spoken = []
    for name, seconds in zip(parts.index, parts.to_numpy(), strict=True):
        texts = [written(value) for value in seconds]
        rows.append([str(name), *texts])
        of_parts = ", ".join(f"{part} {text} s" for part, text in zip(parts, texts, strict=True))
        spoken.append(f"{name}: {of_parts}")
    return Chart(
        key="time",
        title="Time of a round",
        caption="Wall time of a round: median over the rounds, mean over the runs.",
        alt=f"Stacked bars: seconds of a round by part. In the median, {'; '.join(spoken)}.",
        plot=Bars(Axis("seconds per round"), parts),
        numbers=Table(["method", *map(str, parts)], rows, "Seconds of a round by part"),
    )


def by_round(methods: Sequence[Method]) -> list[Chart]:
    """Draw the seconds of each round, the memory of the process and that of the GPU; those with a value above 0."""
    charts = []
    for column, (title, caption, y, unit) in BY_ROUND.items():
        drawn = []
        for method in methods:
            timings = [run.timings for run in method.runs if column in run.timings]
            columns = {number: table[column] / unit for number, table in enumerate(timings)}
            drawn.append(Line(method.name, band(pd.DataFrame(columns))))
        if any((line.points["mean"] > 0).any() for line in drawn):
            charts.append(line_chart(column, title, caption, drawn, ROUND, y))
    return [chart for chart in charts if chart]


def axes(methods: Sequence[Method]) -> list[OtherAxis]:
    """Collect the quantities that curves can have on the x-axis in place of the round: training time and bytes.

    Their values are means over the runs, summed since the first round.
    """
    every = [
        _axis("seconds", "training time", methods, _time, TIMES),
        _axis("bytes", "bytes sent", methods, _bytes, SIZES),
    ]
    return [axis for axis in every if axis]


def _axis(
    key: str,
    title: str,
    methods: Sequence[Method],
    read: Callable[[Run], pd.Series],
    units: Sequence[tuple[float, str]],
) -> OtherAxis | None:
    """Describe an axis, in the largest unit of which some method needs 3 or more; None without values.

    Args:
        key: see :class:`OtherAxis`.
        title: title of the axis, without the unit.
        methods: the methods of the page.
        read: reads a run's sums, by round.
        units: value and name of each unit, the largest first; the last one is for all smaller values.
    """
    means = [_mean([read(run) for run in method.runs]) for method in methods]
    largest = max((float(mean.max()) for mean in means if len(mean)), default=None)
    if largest is None:
        return None
    fitting = [(unit, name) for unit, name in units if largest >= 3 * unit]
    unit, name = fitting[0] if fitting else units[-1]
    values = [(mean.index.tolist(), rounded(mean / unit)) for mean in means]
    return OtherAxis(key, f"{title} ({name})", values)


def _mean(columns: Sequence[pd.Series]) -> pd.Series:
    filled = [column for column in columns if len(column)]
    return pd.DataFrame(dict(enumerate(filled))).mean(axis=1)


def _time(run: Run) -> pd.Series:
    """Return the seconds that the algorithm needs: local training and the server, without monitors and evaluation."""
    if "local" not in run.timings or "server" not in run.timings:
        return pd.Series(dtype=float)
    return (run.timings["local"] + run.timings["server"]).cumsum()


def _bytes(run: Run) -> pd.Series:
    return values_by_round(run, BYTES)
