"""Charts of time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.report.charts import COLOURS, POINTS, figure, lines
from fl_lightning.report.methods import Method
from fl_lightning.report.parts import Chart, rounded, thin, written
from fl_lightning.runs.seeds import band

# Columns of seconds_by_part, each with its name and colour in the chart.
PARTS = {
    "local": ("local training", COLOURS[0]),
    "server": ("server", COLOURS[5]),
    "monitors": ("monitors", COLOURS[1]),
    "rest": ("evaluation, logs, checkpoints", COLOURS[4]),
}


def time_of_round(methods: Sequence[Method]) -> Chart | None:
    """Draw the time of a round by part: areas over the rounds for one method, one bar per method for several."""
    parts = {method.name: table for method in methods if len(table := seconds_by_part(method))}
    if not parts:
        return None
    usual = {name: table.median() for name, table in parts.items()}
    spoken = "; ".join(
        f"{name}: " + ", ".join(f"{called} {written(float(each[part]))} s" for part, (called, _) in PARTS.items())
        for name, each in usual.items()
    )
    return Chart(
        key="time",
        title="Time of a round",
        caption="Seconds of wall time, mean over the runs" + (", median over the rounds." if len(parts) > 1 else "."),
        alt=f"Stacked chart: seconds of a round by part. In the median, {spoken}.",
        figure=_bars(usual) if len(parts) > 1 else _area(*parts.values()),
    )


def _bars(usual: Mapping[str, pd.Series]) -> dict[str, Any]:
    bars = [
        go.Bar(y=list(usual), x=rounded(float(each[part]) for each in usual.values()), name=called, marker_color=colour)
        for part, (called, colour) in PARTS.items()
    ]
    return figure(
        *(bar.update(orientation="h") for bar in bars),
        barmode="stack",
        hovermode="y unified",
        height=130 + 42 * len(usual),
        xaxis={"title": {"text": "seconds per round"}},
        yaxis={"autorange": "reversed"},
        legend={"traceorder": "normal"},
    )


def _area(table: pd.DataFrame) -> dict[str, Any]:
    table = table.iloc[thin(len(table), POINTS)]
    style = {"x": table.index.tolist(), "stackgroup": "time", "mode": "lines"}
    areas = [
        go.Scatter(y=rounded(table[part].tolist()), name=called, line={"width": 0.5, "color": colour}, **style)
        for part, (called, colour) in PARTS.items()
    ]
    axes = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": "seconds"}}}
    return figure(*areas, **axes, legend={"traceorder": "normal"})


def seconds_by_part(method: Method) -> pd.DataFrame:
    """Compute the seconds of each part by round, mean over the runs; empty without timings."""
    timed = [run.timings for run in method.runs if len(run.timings)]
    if not timed:
        return pd.DataFrame()
    return pd.concat(timed).groupby(level=0).mean()[list(PARTS)]


def memory(methods: Sequence[Method]) -> list[Chart]:
    """Draw the memory of the process and, if there is one, of the GPU."""
    shown = []
    for column, title in (("memory_mib", "Memory of the process"), ("gpu_mib", "Peak memory on the GPU")):
        bands = {}
        for method in methods:
            columns = {n: run.timings[column] / 1024 for n, run in enumerate(method.runs) if column in run.timings}
            bands[method.name] = band(pd.DataFrame(columns))
        if any(np.nanmax(points["high"], initial=0) > 0 for points in bands.values()):
            chart = lines(column, title, "GiB at the end of a round.", bands, "round")
            shown += [chart] if chart else []
    return shown
