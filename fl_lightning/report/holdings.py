"""Charts of the examples that each client holds, and of the weight of each client or class over the rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_lightning.report.frames import client_name, client_names, listed, seed_of, share
from fl_lightning.report.methods import Method
from fl_lightning.report.numbers import fewer, rounded, thin, written
from fl_lightning.report.parts import Chart, Frames
from fl_lightning.report.plots import Axis, Bubbles, Heat, Panels

CLIENTS = 200  # largest number of clients in a heat map
BUBBLES = 100  # largest number of clients in a bubble plot
NARROW = 40  # largest number of clients in a bubble plot of half the page's width
CELLS = 100_000  # largest number of cells in all heat maps of a chart
ROUNDS = 100  # largest number of rounds in a heat map


def partition(methods: Sequence[Method]) -> Chart | None:
    """Draw the examples of each class at each client as bubbles: a panel per method, or one if all have the same."""
    counts = {
        (method.name, seed_of(run)): found["counts"]
        for method in methods
        for run in method.runs
        if "counts" in (found := run.partition())
    }
    if not counts:
        return None
    first = {seed: each for (_, seed), each in counts.items()}
    if all(np.array_equal(each, first[seed]) for (_, seed), each in counts.items()):
        counts = {("all methods" if len(methods) > 1 else methods[0].name, seed): each for seed, each in first.items()}
    panels = list(dict.fromkeys(name for name, _ in counts))
    runs = [
        {"panel": panels.index(name), "seed": seed, "frames": [_held(each)]} for (name, seed), each in counts.items()
    ]
    frames, most = Frames(panels, runs), max(map(len, counts.values()))
    names, first_seed = client_names(methods), runs[0]["seed"]
    return Chart(
        key="partition",
        title="Examples that each client holds",
        caption="A bubble's area is the number of examples of a class at a client."
        + (f" The first {BUBBLES} of {most:,} clients are drawn." if most > BUBBLES else ""),
        alt="Bubble plot of the examples of each class at each client",
        plot=Panels({name: Bubbles(each, names) for (name, seed), each in counts.items() if seed == first_seed}),
        numbers=listed(frames, "Partitions"),
        frames=frames,
        wide=len(panels) > 1 or most > NARROW,
    )


def _held(counts: NDArray[np.int64]) -> dict[str, Any]:
    clients, classes = counts[:BUBBLES].nonzero()
    held = counts[counts.sum(1) > 0]
    values = {
        "clients with data": written(len(held)),
        "examples of a client": _span(held.sum(1)),
        f"classes of a client (of {counts.shape[1]})": _span((held > 0).sum(1)),
    }
    sizes = counts[clients, classes]
    return {"text": [values], "held": [clients.tolist(), classes.tolist(), sizes.tolist()]}


def _span(values: Iterable[int]) -> str:
    values = list(values)
    return f"{min(values):,} to {max(values):,}" if values else "–"


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
    having = [method for method in methods if any(len(run.items(prefix)) for run in method.runs)]
    every = [(at, run) for at, method in enumerate(having) for run in method.runs if len(run.items(prefix))]
    if not every or constant_items(methods, prefix, title):
        return None
    tables = {run.folder: run.items(prefix) for _, run in every}
    rounds, items = (max(table.shape[axis] for table in tables.values()) for axis in (0, 1))
    shown, most = share(every, CELLS // min(items, CLIENTS), min(rounds, ROUNDS))
    most = min(most, ROUNDS)
    high = max(2 / items, *(float(np.nanmax(table.to_numpy())) for table in tables.values()))
    colour, axes = Axis("share" if percent else "weight", percent), (Axis("round"), Axis(item))
    names = client_names(methods) if item == "client" else None
    panels: dict[str, Heat] = {}
    runs = []
    for at, run in shown:
        table = tables[run.folder]
        values = table.iloc[thin(len(table), most), :CLIENTS].T
        runs.append({"panel": at, "seed": seed_of(run), "frames": [_by_round(table, values, item, percent, names)]})
        panels.setdefault(having[at].name, Heat(*axes, _named(values, names), colour, 0.0, high))
    frames = Frames([method.name for method in having], runs)
    return Chart(
        key=prefix.replace("/", "-"),
        title=title,
        caption=caption
        + fewer(min(rounds, most), rounds, "rounds")
        + (f" (the first {CLIENTS} of {items:,} are drawn)" if items > CLIENTS else ""),
        alt=f"Heat map: {title}, by {item} and round",
        plot=Panels(panels),
        numbers=listed(frames, f"{title}, last round"),
        frames=frames,
        wide=True,
    )


def constant_items(methods: Sequence[Method], prefix: str, title: str) -> str:
    """Return a sentence if the metrics ``prefix/<n>`` never change in any run of several rounds; else empty."""
    tables = [table for method in methods for run in method.runs if len(table := run.items(prefix))]
    if not tables or any(len(table) < 2 or (table.max() - table.min()).max() > 1e-9 for table in tables):
        return ""
    return f"Constant over all rounds: {prefix}/* ({title})."


def _named(values: pd.DataFrame, names: Sequence[str] | None) -> pd.DataFrame:
    """Return the rows of a heat map, named by the clients' names."""
    return values if names is None else values.set_axis([client_name(each, names) for each in values.index])


def _by_round(
    table: pd.DataFrame, shown: pd.DataFrame, item: str, percent: bool, names: Sequence[str] | None
) -> dict[str, Any]:
    last = table.iloc[-1].dropna()
    ends = {"largest in the last round": int(str(last.idxmax())), "smallest": int(str(last.idxmin()))}
    text = {title: f"{written(last[at], percent)} ({item} {client_name(at, names)})" for title, at in ends.items()}
    z = [rounded(row, 3) for row in shown.to_numpy()]
    return {"text": [text], "x": shown.columns.tolist(), "y": shown.index.tolist(), "z": z}
