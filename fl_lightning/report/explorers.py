"""Charts with a choice of run and round: cosines between clients, loss surfaces, partitions, weights."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go  # type: ignore[import-untyped]  # it ships no types
from numpy.typing import NDArray

from fl_lightning.report.charts import COLOURS, figure
from fl_lightning.report.methods import Method, every_run
from fl_lightning.report.parts import Chart, Table, fewer, rounded, thin, written
from fl_lightning.runs.reader import load

BUDGET = 2_000_000  # largest number of characters in all frames of a chart
LISTED = 100  # largest number of frames in a chart's table of numbers
CLIENTS = 200  # largest number of clients in a heat map
BUBBLES = 100  # largest number of clients in a bubble plot
ROUNDS = 100  # largest number of rounds in a heat map over the rounds
DECADES = 3.0  # largest range of a loss surface's colours, in powers of ten
SCALE = 127  # int8 value that stands for a cosine of 1
# Orange and blue, which colour-blind readers can tell apart; orange is conflict.
DIVERGING = [[0, "#b35806"], [0.25, "#f1a340"], [0.5, "#f7f7f7"], [0.75, "#67a9cf"], [1, "#2166ac"]]
VIEWS = ("as they came", "as corrected by the rules")


@dataclass(frozen=True)
class Frame:
    """Content of a chart for one run and one round.

    Attributes:
        round: the round; None if the frame is for all rounds.
        values: written numbers that summarise the frame, by name, for each view.
        shown: data for page.js: ``update`` (attributes of the first trace), or ``clients`` and ``cosines``.
    """

    round: int | None
    values: Sequence[Mapping[str, str]]
    shown: Mapping[str, Any]

    def payload(self) -> dict[str, Any]:
        """Make the frame's data for page.js: ``round``, ``text`` for each view, and the entries of ``shown``."""
        text = ["; ".join(f"{name}: {value}" for name, value in view.items()) for view in self.values]
        return {"round": self.round, "text": text, **self.shown}


def _explorer(frames: Mapping[str, Sequence[Frame]], what: str, **chart: Any) -> Chart:
    """Make a chart of frames by run; ``what`` is the caption of its table of numbers."""
    runs = [{"name": name, "frames": [frame.payload() for frame in each]} for name, each in frames.items()]
    every = [(name, frame) for name, each in frames.items() for frame in each]
    views = VIEWS if any(len(frame.values) > 1 for _, frame in every) else ()
    head = [name + (f", {view}" if view else "") for view in views or ("",) for name in every[0][1].values[0]]
    rows = []
    for name, frame in (every[at] for at in thin(len(every), LISTED)):
        both = [*frame.values, *frame.values][: max(1, len(views))]  # without a correction, both views are the same
        place = [name] if frame.round is None else [name, str(frame.round)]
        rows.append([*place, *(value for view in both for value in view.values())])
    places = ["run"] if every[0][1].round is None else ["run", "round"]
    numbers = Table([*places, *head], rows, what + fewer(len(rows), len(every), "rows"))
    return Chart(numbers=numbers, runs=runs, views=views, **chart)


def _files(methods: Sequence[Method], name: str) -> dict[str, dict[int, Path]]:
    return {label: files for label, run in every_run(methods) if (files := run.arrays(name))}


def _within(files: Mapping[int, Path], read: Callable[[int, Path], Frame], budget: int) -> list[Frame]:
    """Read the frames of as many rounds as fit the budget, evenly spread; at least one frame."""
    rounds = list(files)
    length = len(json.dumps(read(rounds[-1], files[rounds[-1]]).payload()))
    kept = thin(len(rounds), max(1, budget // length))
    return [read(rounds[at], files[rounds[at]]) for at in kept]


def _kept(files: Mapping[str, Mapping[int, Path]], frames: Mapping[str, Sequence[Frame]]) -> str:
    """Note for a chart if some rounds did not fit; else empty."""
    shown, of = sum(map(len, frames.values())), sum(map(len, files.values()))
    return f" Of {of:,} recorded matrices {shown:,} are shown, evenly spread over the rounds." if shown < of else ""


def _bar(title: str, **more: Any) -> dict[str, Any]:
    above = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "thickness": 10, "outlinewidth": 0}
    return {"title": {"text": title, "side": "top"}, **above, **more}


def cosines(methods: Sequence[Method]) -> Chart | None:
    """Draw a heat map of the cosines between the updates of every two clients.

    A frame has the ids of the ``clients``, and for each view in ``cosines`` the upper triangle with its diagonal, row
    by row: 127 times the cosine as int8, in base64.
    """
    files = _files(methods, "cosines")
    if not files:
        return None
    frames = {name: _within(found, _cosines, BUDGET // len(files)) for name, found in files.items()}
    hover = "clients %{y} and %{x}: %{z:.2f}<extra></extra>"
    heat = go.Heatmap(zmin=-1, zmax=1, colorscale=DIVERGING, colorbar=_bar("cosine"), hovertemplate=hover)
    axis = {"type": "category", "title": {"text": "client"}, "constrain": "domain", "showgrid": False}
    down = {**axis, "autorange": "reversed", "scaleanchor": "x"}
    cut = any(len(frame.shown["clients"]) == CLIENTS for each in frames.values() for frame in each)
    return _explorer(
        frames,
        "Cosines by run and round",
        key="cosines",
        square=True,
        title="Cosines between the clients' updates",
        caption="Blue pairs of clients pull the model in the same direction, orange pairs against each other."
        + _kept(files, frames)
        + (f" No more than the first {CLIENTS} clients of a cohort are drawn." if cut else ""),
        alt="Heat map of the cosine between the updates of every two clients of a round",
        figure=figure(heat, height=None, xaxis=axis, yaxis=down, hovermode="closest"),
    )


def _cosines(round: int, path: Path) -> Frame:
    arrays = load(path, "clients", "before", "after")
    before, after = arrays["before"], arrays["after"]
    views = [before] if np.array_equal(before, after) else [before, after]
    packed = [pack(view[:CLIENTS, :CLIENTS]) for view in views]
    return Frame(round, [*map(_of_pairs, views)], {"clients": arrays["clients"][:CLIENTS].tolist(), "cosines": packed})


def pack(matrix: NDArray[np.float64]) -> str:
    """Pack the upper triangle of a symmetric matrix with values in [-1, 1] into text, as in :func:`cosines`."""
    upper = matrix[np.triu_indices(len(matrix))]
    return base64.b64encode(np.rint(SCALE * upper).astype(np.int8).tobytes()).decode()


def _of_pairs(matrix: NDArray[np.float64]) -> dict[str, str]:
    pairs = matrix[np.triu_indices(len(matrix), 1)]
    share, least, mean = ((pairs < 0).mean(), pairs.min(), pairs.mean()) if len(pairs) else [math.nan] * 3
    return {"pairs in conflict": written(share, True), "smallest cosine": written(least), "mean cosine": written(mean)}


def surfaces(methods: Sequence[Method]) -> Chart | None:
    """Draw contours of the loss around the global model, with one scale of colours for all runs."""
    files = _files(methods, "surface")
    if not files:
        return None
    frames = {name: _within(found, _surface, BUDGET // len(files)) for name, found in files.items()}
    heights = [z for each in frames.values() for frame in each for row in frame.shown["update"]["z"] for z in row]
    centre = go.Scatter(x=[0], y=[0], mode="markers", hoverinfo="skip", showlegend=False)
    centre.marker = {"symbol": "cross-thin", "size": 12, "line": {"width": 2, "color": "white"}}
    steps = {"constrain": "domain", "zeroline": False, "showgrid": False}
    return _explorer(
        frames,
        "Loss surfaces",
        key="surface",
        square=True,
        title="Loss surface around the global model",
        caption="Loss along two random directions, filter-normalised, which all runs share; the cross is the model. "
        "A wide dark basin is a flat minimum. Colours are logarithmic." + _kept(files, frames),
        alt="Contour plot of the loss along two random directions around the global model",
        figure=figure(
            *(_contours([z for z in heights if z is not None] or [0.0]), centre),
            height=None,
            xaxis={**steps, "title": {"text": "along direction 2"}},
            yaxis={**steps, "title": {"text": "along direction 1"}, "scaleanchor": "x"},
            hovermode="closest",
        ),
    )


def _contours(heights: Sequence[float]) -> Any:
    """Make a contour trace whose colours fit these heights, log10(loss)."""
    low, high = min(heights), min(max(heights), min(heights) + DECADES)
    ticks = np.linspace(low, high, 6)
    return go.Contour(
        contours={"start": low, "end": high, "size": max(high - low, 1e-3) / 20},
        autocontour=False,
        zmin=low,
        zmax=high,
        line={"width": 0.5, "color": "rgba(255,255,255,0.5)"},
        colorscale="Cividis",
        colorbar=_bar("loss", tickvals=rounded(ticks), ticktext=[f"{10**tick:.3g}" for tick in ticks]),
        hovertemplate="loss %{customdata:.4g}<extra></extra>",
    )


def _surface(round: int, path: Path) -> Frame:
    arrays = load(path, "steps", "loss")
    steps, loss = arrays["steps"], arrays["loss"]
    logs = np.log10(np.where(np.isfinite(loss), np.maximum(loss, 1e-9), math.nan))
    centre = loss[np.abs(steps).argmin(), np.abs(steps).argmin()]
    values = {"loss of the model": centre, "lowest": np.nanmin(loss), "highest": np.nanmax(loss)}
    along = rounded(steps)
    grid = {"z": [rounded(row) for row in logs], "customdata": [rounded(row) for row in loss]}
    read = {name: written(float(value)) for name, value in values.items()}
    return Frame(round, [read], {"update": {"x": along, "y": along, **grid}})


def partition(methods: Sequence[Method]) -> Chart | None:
    """Draw the examples of each class at each client as bubbles."""
    counts = {label: run.partition().get("counts") for label, run in every_run(methods)}
    frames = {label: [_held(each)] for label, each in counts.items() if each is not None}
    if not frames:
        return None
    most = max(len(each) for each in counts.values() if each is not None)
    drawn = go.Scatter(mode="markers", hovertemplate="client %{x}, class %{y}: %{customdata:,} examples<extra></extra>")
    return _explorer(
        frames,
        "Partitions",
        key="partition",
        wide=True,
        title="What each client holds",
        caption="A bubble's area is the number of examples of a class at a client."
        + (f" The first {BUBBLES} of {most:,} clients are drawn." if most > BUBBLES else ""),
        alt="Bubble plot of the examples of each class at each client",
        figure=figure(
            drawn,
            height=380,
            xaxis={"title": {"text": "client"}},
            yaxis={"title": {"text": "class"}, "autorange": "reversed"},
            hovermode="closest",
        ),
    )


def _held(counts: NDArray[np.int64]) -> Frame:
    clients, classes = counts[:BUBBLES].nonzero()
    sizes = counts[clients, classes]
    diameter = min(24.0, 800 / min(len(counts), BUBBLES))  # pixels
    held = counts[counts.sum(1) > 0]
    values = {
        "clients with data": written(len(held)),
        "examples of a client": _span(held.sum(1)),
        f"classes of a client (of {counts.shape[1]})": _span((held > 0).sum(1)),
    }
    marker = {"size": sizes.tolist(), "sizemode": "area", "sizeref": 2 * float(sizes.max(initial=1)) / diameter**2}
    marker |= {"color": COLOURS[0], "opacity": 0.85, "sizemin": 1}
    at = {"x": clients.tolist(), "y": classes.tolist(), "customdata": sizes.tolist(), "marker": marker}
    return Frame(None, [values], {"update": at})


def _span(values: Iterable[int]) -> str:
    values = list(values)
    return f"{min(values):,} to {max(values):,}" if values else "–"


def over_rounds(
    methods: Sequence[Method], prefix: str, item: str, title: str, caption: str, percent: bool = False
) -> Chart | None:
    """Draw a heat map of the metrics ``prefix/<n>`` over the rounds.

    Args:
        methods: the methods of the page.
        prefix: prefix of the metrics.
        item: word for the thing that n numbers: "client" or "class".
        title: title of the chart.
        caption: caption of the chart.
        percent: whether the values are shares.
    """
    tables = {label: table for label, run in every_run(methods) if len(table := run.items(prefix))}
    if not tables:
        return None
    frames = {label: [_by_round(table, item, percent)] for label, table in tables.items()}
    rounds, items = (max(table.shape[axis] for table in tables.values()) for axis in (0, 1))
    hover = f"{item} %{{y}}, round %{{x}}: %{{z:.4g}}<extra></extra>"
    heat = go.Heatmap(colorscale="Cividis", colorbar=_bar("share" if percent else "weight"), hovertemplate=hover)
    return _explorer(
        frames,
        f"{title}, last round",
        key=prefix.replace("/", "-"),
        wide=True,
        title=title,
        caption=caption
        + fewer(min(rounds, ROUNDS), rounds, "rounds")
        + (f" (the first {CLIENTS} of {items:,} are drawn)" if items > CLIENTS else ""),
        alt=f"Heat map: {title}, by {item} and round",
        figure=figure(
            heat,
            height=max(260, min(700, 14 * items + 90)),
            xaxis={"title": {"text": "round"}, "showgrid": False},
            yaxis={"title": {"text": item}, "type": "category", "autorange": "reversed", "showgrid": False},
            hovermode="closest",
        ),
    )


def _by_round(table: pd.DataFrame, item: str, percent: bool) -> Frame:
    last = table.iloc[-1].dropna()
    values = {
        "largest in the last round": f"{written(last.max(), percent)} ({item} {last.idxmax()})",
        "smallest": f"{written(last.min(), percent)} ({item} {last.idxmin()})",
    }
    shown = table.iloc[thin(len(table), ROUNDS), :CLIENTS]
    grid = {"x": shown.index.tolist(), "y": list(map(str, shown)), "z": [rounded(shown[name]) for name in shown]}
    return Frame(None, [values], {"update": grid})
