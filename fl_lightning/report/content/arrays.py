"""Cosines between clients and loss surfaces, the methods side by side, by seed and round."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster import hierarchy  # type: ignore[import-untyped]  # it ships no types
from scipy.spatial.distance import squareform  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.report.compared.methods import Method
from fl_lightning.report.content.by_round import client_names, named, of_files, seed_of, tabulated
from fl_lightning.report.drawing.plots import Axis, Heat, Panels, Surface
from fl_lightning.report.elements import Chart, Frames
from fl_lightning.report.numbers import rounded, written
from fl_lightning.runs.reader import Run, load

FRAME_LETTERS = 1_500_000  # largest number of characters in all frames of a chart
CLIENTS = 200  # largest number of clients in a heat map
CELLS = 500_000  # largest number of cells in one round's heat maps of all methods
SCALE = 127  # int8 value that stands for a cosine of 1
MAPS_ABREAST = 4  # largest number of printed heat maps side by side
VIEWS = ("before", "after correction")


def cosines(methods: Sequence[Method], budget: int = FRAME_LETTERS) -> Chart | None:
    """Draw the cosines between the updates of every two clients: a heat map for each method.

    A frame has the ids of the ``clients``, and for each view in ``cosines`` the upper triangle with its diagonal, row
    by row: 127 times the cosine as int8, in base64.

    Args:
        methods: the methods of the page.
        budget: largest number of characters in all frames.
    """
    most = min(CLIENTS, math.isqrt(CELLS // len(methods)))
    if (frames := of_files(methods, "cosines", lambda path: _cosines(path, most), budget)) is None:
        return None
    shown = [frame for run in frames.runs for frame in run["frames"]]
    corrected = any(len(frame["cosines"]) > 1 for frame in shown)
    frames = replace(frames, views=VIEWS if corrected else (), orders=_orders(methods, frames))
    cut = any(len(frame["clients"]) == most for frame in shown)
    return Chart(
        key="cosines",
        title="Cosines between the clients' updates",
        caption="Blue: the updates of two clients point in similar directions; orange: they point against each other."
        + frames.note
        + (f" No more than the first {most} clients of a cohort are drawn." if cut else ""),
        alt="Heat maps of the cosine between the updates of every two clients of a round, one map per method",
        plot=_printed(frames, client_names(methods)),
        numbers=tabulated(frames, "Cosines by run and round"),
        frames=frames,
        wide=True,
    )


def _cosines(path: Path, most: int) -> dict[str, Any]:
    arrays = load(path, "clients", "before", "after")
    packed = [pack(arrays[view][:most, :most]) for view in ("before", "after")]
    views = 1 if packed[0] == packed[1] else 2  # 1 without a correction
    text = [_of_pairs(arrays[view]) for view in ("before", "after")[:views]]
    return {"text": text, "clients": arrays["clients"][:most].tolist(), "cosines": packed[:views]}


def pack(matrix: NDArray[np.float64]) -> str:
    """Pack the upper triangle of a symmetric matrix with values in [-1, 1] into text, as in :func:`cosines`."""
    upper = matrix[np.triu_indices(len(matrix))]
    return base64.b64encode(np.rint(SCALE * upper).astype(np.int8).tobytes()).decode()


def unpack(packed: str, size: int) -> NDArray[np.float64]:
    """Undo :func:`pack` for a matrix of this size, up to rounding."""
    matrix = np.zeros((size, size))
    rows, columns = np.triu_indices(size)
    matrix[rows, columns] = matrix[columns, rows] = np.frombuffer(base64.b64decode(packed), np.int8) / SCALE
    return matrix


def _of_pairs(matrix: NDArray[np.float64]) -> dict[str, str]:
    pairs = matrix[np.triu_indices(len(matrix), 1)]
    share, least, mean = ((pairs < 0).mean(), pairs.min(), pairs.mean()) if len(pairs) else [math.nan] * 3
    return {"pairs in conflict": written(share, True), "smallest cosine": written(least), "mean cosine": written(mean)}


def _printed(frames: Frames, names: Sequence[str] | None) -> Panels:
    """Return the heat maps of the last round and the first seed, one per method; a second row is after correction."""
    client, found, last = Axis("client"), {}, frames.printed
    views = max(len(frame["cosines"]) for frame in last.values())
    for view in range(views):
        for panel, frame in last.items():
            packed = frame["cosines"][: view + 1][-1]  # there is one without a correction
            clients = named(frame["clients"], names)
            values = pd.DataFrame(unpack(packed, len(clients)), clients, clients)
            name = panel + (f", {VIEWS[view]}" if views > 1 else "")
            found[name] = Heat(client, client, values, Axis("cosine"), -1, 1, diverging=True)
    return Panels(found, columns=len(last) if views > 1 and 1 < len(last) <= MAPS_ABREAST else 0)


def _orders(methods: Sequence[Method], frames: Frames) -> dict[str, dict[str, list[int]]]:
    """Return orders of the clients for each seed, equal for all methods: by dominant class, and by similar updates."""
    orders: dict[str, dict[str, list[int]]] = {}
    for seed in dict.fromkeys(run["seed"] for run in frames.runs):
        alike = [run for method in methods for run in method.runs if seed_of(run) == seed]
        shown = [frame for run in frames.runs if run["seed"] == seed for frame in run["frames"]]
        matrices = [(each["clients"], unpack(each["cosines"][0], len(each["clients"]))) for each in shown]
        orders[seed] = {**_by_class(alike), "cluster": clustered(matrices)}
    return orders


def _by_class(runs: Sequence[Run]) -> dict[str, list[int]]:
    counts = next((found["counts"] for run in runs if "counts" in (found := run.partition())), None)
    return {} if counts is None else {"class": np.lexsort((-counts.max(1), counts.argmax(1))).tolist()}


def clustered(matrices: Sequence[tuple[Sequence[int], NDArray[np.float64]]]) -> list[int]:
    """Order clients by average-linkage clustering, so that those with similar updates are neighbours.

    Args:
        matrices: for each round, the ids of its K clients and the (K, K) cosines of their updates.

    Returns:
        The clients in the order of the tree's leaves. The similarity of two clients is the mean of their cosines over
        the rounds that have both.
    """
    clients = sorted({client for ids, _ in matrices for client in ids})
    place = {client: at for at, client in enumerate(clients)}
    total, count = np.zeros((2, len(clients), len(clients)))
    for ids, matrix in matrices:
        cells = np.ix_([place[client] for client in ids], [place[client] for client in ids])
        total[cells] += matrix
        count[cells] += 1
    if len(clients) < 3:
        return clients
    distance = 1 - total / np.maximum(count, 1)
    np.fill_diagonal(distance, 0)
    tree = hierarchy.linkage(squareform(distance, checks=False), "average", optimal_ordering=len(clients) <= CLIENTS)
    return [clients[leaf] for leaf in hierarchy.leaves_list(tree)]


def surfaces(methods: Sequence[Method], budget: int = FRAME_LETTERS) -> Chart | None:
    """Draw contours of the loss around the global model for each method, with one scale of colours.

    A frame has the ``steps`` along both directions and the ``loss``, row by row.

    Args:
        methods: the methods of the page.
        budget: largest number of characters in all frames.
    """
    if (frames := of_files(methods, "surface", _surface, budget)) is None:
        return None
    printed = {
        panel: Surface(np.array(frame["steps"], float), np.array(frame["loss"], float))
        for panel, frame in frames.printed.items()
    }
    return Chart(
        key="surface",
        title="Loss surface around the global model",
        caption="Loss along two random, filter-normalised directions, the same for all runs; the cross is the model. "
        "A wide dark basin is a flat minimum. Colours are logarithmic." + frames.note,
        alt="Contour plots of the loss along two random directions around the global model, one plot per method",
        plot=Panels(printed),
        numbers=tabulated(frames, "Loss surfaces"),
        frames=frames,
        wide=True,
    )


def _surface(path: Path) -> dict[str, Any]:
    arrays = load(path, "steps", "loss")
    steps, loss = arrays["steps"], arrays["loss"]
    centre = np.abs(steps).argmin()
    values = {"loss of the model": loss[centre, centre]}
    values |= {"lowest": np.fmin.reduce(loss, axis=None), "highest": np.fmax.reduce(loss, axis=None)}  # of all but nan
    text = {name: written(float(value)) for name, value in values.items()}
    return {"text": [text], "steps": rounded(steps), "loss": [rounded(row) for row in loss]}
