"""Charts of time, memory and bytes, and the axes of seconds and bytes for all curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fl_lightning.report.charts import ROUND, lines
from fl_lightning.report.methods import Method
from fl_lightning.report.numbers import rounded, written
from fl_lightning.report.parts import Chart, Table
from fl_lightning.report.plots import Axis, Bars, Line
from fl_lightning.runs.reader import Run
from fl_lightning.runs.seeds import band

# Columns of a run's timings, each with the name of the part of a round that the column measures.
PARTS = {
    "local": "local training",
    "server": "server",
    "monitors": "monitors",
    "rest": "evaluation, logs, checkpoints",
}
BYTES = "bytes/total"
TIMES = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))  # units in seconds; used for times of 3 units or more
SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def time_of_round(methods: Sequence[Method]) -> Chart | None:
    """Draw the seconds of a round by part, median over the rounds, one bar per method."""
    usual = {method.name: table.median() for method in methods if len(table := seconds_by_part(method))}
    if not usual:
        return None
    parts = pd.DataFrame(usual).T.fillna(0.0)
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


def seconds_by_part(method: Method) -> pd.DataFrame:
    """Compute the seconds of each part of a round, by round, mean over the runs; empty without timings."""
    timed = [run.timings for run in method.runs if len(run.timings)]
    if not timed:
        return pd.DataFrame()
    return pd.concat(timed).groupby(level=0).mean()[list(PARTS)].rename(columns=PARTS)


def seconds_by_round(methods: Sequence[Method]) -> Chart | None:
    """Draw the seconds of each round, one line per method."""
    return _timed(methods, "seconds", 1.0, "Time by round", "Wall time of each round.", Axis("seconds"))


def memory(methods: Sequence[Method]) -> list[Chart]:
    """Draw the memory of the process and, if there is one, of the GPU."""
    named = {"memory_mib": "Memory of the process", "gpu_mib": "Peak memory on the GPU"}
    caption, y = "Measured at the end of each round.", Axis("GiB")
    charts = [_timed(methods, column, 1 / 1024, title, caption, y) for column, title in named.items()]
    return [chart for chart in charts if chart]


def _timed(methods: Sequence[Method], column: str, unit: float, title: str, caption: str, y: Axis) -> Chart | None:
    """Draw a column of timings.csv times ``unit``; None if there are no values, or all values are zero."""
    drawn = []
    for method in methods:
        columns = {n: run.timings[column] * unit for n, run in enumerate(method.runs) if column in run.timings}
        drawn.append(Line(method.name, band(pd.DataFrame(columns))))
    if not any((line.points["mean"] > 0).any() for line in drawn):
        return None
    return lines(column, title, caption, drawn, ROUND, y)


def axes(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Collect the quantities that curves can have on the x-axis in place of the round: training time and bytes.

    Returns:
        For each axis its ``key``, its ``title`` with the unit, and for each method ``[rounds, values]``: the means over
        the runs, summed since the first round.
    """
    found = []
    for key, title, read, units in (
        ("seconds", "training time", _time, TIMES),
        ("bytes", "bytes sent", _bytes, SIZES),
    ):
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
    return run.metrics[BYTES].dropna() if BYTES in run.metrics else pd.Series(dtype=float)
