"""Charts of time, memory and bytes, and the axes of seconds and bytes for all curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fl_lightning.report.compared.long_table import values_by_round
from fl_lightning.report.compared.methods import Method
from fl_lightning.report.content.charts import ROUND, lines
from fl_lightning.report.drawing.plots import Axis, Bars, Line
from fl_lightning.report.elements import Chart, Table
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
    "memory_mib": ("Memory of the process", MEASURED, Axis("GiB"), 1024),
    "gpu_mib": ("Peak memory on the GPU", MEASURED, Axis("GiB"), 1024),
}
TIMES = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))  # units in seconds; used for times of 3 units or more
SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def time_of_round(methods: Sequence[Method]) -> Chart | None:
    """Draw the seconds of a round by part, median over the rounds, one bar per method."""
    timed = {method.name: [run.timings for run in method.runs if len(run.timings)] for method in methods}
    means = {name: pd.concat(each).groupby(level=0).mean() for name, each in timed.items() if each}
    if not means:
        return None
    parts = pd.DataFrame({name: each[list(PARTS)].median() for name, each in means.items()}).T.rename(columns=PARTS)
    rows = [[str(name), *map(written, row)] for name, row in zip(parts.index, parts.to_numpy(), strict=True)]
    spoken = "; ".join(
        f"{name}: " + ", ".join(f"{part} {value} s" for part, value in zip(parts, row, strict=True))
        for name, *row in rows
    )
    return Chart(
        key="time",
        title="Time of a round",
        caption="Wall time of a round: median over the rounds, mean over the runs.",
        alt=f"Stacked bars: seconds of a round by part. In the median, {spoken}.",
        plot=Bars(Axis("seconds per round"), parts),
        numbers=Table(["method", *map(str, parts)], rows, "Seconds of a round by part"),
    )


def by_round(methods: Sequence[Method]) -> list[Chart | None]:
    """Draw the seconds of each round, the memory of the process and that of the GPU; None without values above 0."""
    charts = []
    for column, (title, caption, y, unit) in BY_ROUND.items():
        drawn = []
        for method in methods:
            columns = {n: run.timings[column] / unit for n, run in enumerate(method.runs) if column in run.timings}
            drawn.append(Line(method.name, band(pd.DataFrame(columns))))
        some = any((line.points["mean"] > 0).any() for line in drawn)
        charts.append(lines(column, title, caption, drawn, ROUND, y) if some else None)
    return charts


def axes(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Collect the quantities that curves can have on the x-axis in place of the round: training time and bytes.

    Returns:
        For each axis its ``key``, its ``title`` with the unit, and for each method ``[rounds, values]``: the means over
        the runs, summed since the first round.
    """
    found = []
    kinds = (("seconds", "training time", _time, TIMES), ("bytes", "bytes sent", _bytes, SIZES))
    for key, title, read, units in kinds:
        means = [_mean([read(run) for run in method.runs]) for method in methods]
        if any(len(each) for each in means):
            largest = max(float(each.max()) for each in means if len(each))
            unit, name = next((unit, name) for unit, name in units if largest >= 3 * unit or unit == units[-1][0])
            values = [[each.index.tolist(), rounded(each / unit)] for each in means]
            found.append({"key": key, "title": f"{title} ({name})", "values": values})
    return found


def _mean(columns: Sequence[pd.Series]) -> pd.Series:
    return pd.DataFrame({n: column for n, column in enumerate(columns) if len(column)}).mean(axis=1)


def _time(run: Run) -> pd.Series:
    """Return the seconds that the algorithm needs: local training and the server, without monitors and evaluation."""
    if "local" not in run.timings or "server" not in run.timings:
        return pd.Series(dtype=float)
    return (run.timings["local"] + run.timings["server"]).cumsum()


def _bytes(run: Run) -> pd.Series:
    return values_by_round(run, BYTES)
