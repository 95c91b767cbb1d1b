"""Cosines between clients and loss surfaces, the methods side by side, by seed and round."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster import hierarchy  # type: ignore[import-untyped]  # it ships no types
from scipy.spatial.distance import squareform  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.report.compared.methods import Method
from fl_lightning.report.content.by_round import client_names, frames_of_files, names_of, seed_of, table_of_frames
from fl_lightning.report.drawing.plots import Axis, Heat, Panels, Surface
from fl_lightning.report.elements import Chart, Frame, Frames
from fl_lightning.report.numbers import rounded, written
from fl_lightning.runs.reader import Run, load

FRAME_LETTERS = 1_500_000  # largest number of characters in all frames of a chart
CLIENTS = 200  # largest number of clients in a heat map
CELLS = 500_000  # largest number of cells in one round's heat maps of all methods
SCALE = 127  # int8 value that stands for a cosine of 1
MAPS_ABREAST = 4  # largest number of printed heat maps side by side
VIEWS = ("before", "after correction")


@dataclass(frozen=True)
class Cosines:
    """The cosines between the updates of a cohort, as explore.js reads them.

    Attributes:
        clients: ids of the K clients.
        cosines: for each view the upper triangle of the (K, K) cosines with its diagonal, row by row: 127 times the
            cosine as int8, in base64. There is one view if no rule corrected the updates, else two.
    """

    clients: Sequence[int]
    cosines: Sequence[str]


@dataclass(frozen=True)
class LossGrid:
    """The loss around the global model, as explore.js reads it.

    Attributes:
        steps: the n positions along both directions.
        loss: n rows of n values of the loss; None if the loss is not finite.
    """

    steps: Sequence[float | None]
    loss: Sequence[Sequence[float | None]]


def cosines(methods: Sequence[Method], budget: int = FRAME_LETTERS) -> Chart | None:
    """Draw the cosines between the updates of every two clients: a heat map for each method.

    Args:
        methods: the methods of the page.
        budget: largest number of characters in all frames.
    """
    most = min(CLIENTS, math.isqrt(CELLS // len(methods)))
    recorded = frames_of_files(methods, "cosines", lambda path: _read_cosines(path, most), budget)
    if recorded is None:
        return None
    corrected = any(len(frame.content.cosines) > 1 for frame in recorded.every)
    frames = replace(recorded, views=VIEWS if corrected else (), orders=_orders(methods, recorded))
    caption = "Blue: the updates of two clients point in similar directions; orange: they point against each other."
    caption += frames.note
    if any(len(frame.content.clients) == most for frame in frames.every):
        caption += f" No more than the first {most} clients of a cohort are drawn."
    return Chart(
        key="cosines",
        title="Cosines between the clients' updates",
        caption=caption,
        alt="Heat maps of the cosine between the updates of every two clients of a round, one map per method",
        plot=_heat_maps(frames, client_names(methods)),
        numbers=table_of_frames(frames, "Cosines by run and round"),
        frames=frames,
        wide=True,
    )


def _read_cosines(path: Path, most: int) -> Frame[Cosines]:
    """Read the cosines of up to this many clients; the summaries are of all clients."""
    arrays = load(path, "clients", "before", "after")
    packed = {view: pack(arrays[view][:most, :most]) for view in ("before", "after")}
    if packed["before"] == packed["after"]:  # no rule corrected the updates
        del packed["after"]
    text = [_summary_of_pairs(arrays[view]) for view in packed]
    return Frame(text, Cosines(arrays["clients"][:most].tolist(), list(packed.values())))


def pack(matrix: NDArray[np.float64]) -> str:
    """Pack the upper triangle of a symmetric matrix with values in [-1, 1] into text, as in :class:`Cosines`."""
    upper = matrix[np.triu_indices(len(matrix))]
    return base64.b64encode(np.rint(SCALE * upper).astype(np.int8).tobytes()).decode()


def unpack(packed: str, size: int) -> NDArray[np.float64]:
    """Undo :func:`pack` for a matrix of this size, up to rounding."""
    matrix = np.zeros((size, size))
    rows, columns = np.triu_indices(size)
    upper = np.frombuffer(base64.b64decode(packed), np.int8) / SCALE
    matrix[rows, columns] = upper
    matrix[columns, rows] = upper
    return matrix


def _summary_of_pairs(matrix: NDArray[np.float64]) -> dict[str, str]:
    """Summarise the cosines of every two clients, as text; dashes for a single client."""
    pairs = matrix[np.triu_indices(len(matrix), 1)]
    if not len(pairs):
        return dict.fromkeys(("pairs in conflict", "smallest cosine", "mean cosine"), written(math.nan))
    return {
        "pairs in conflict": written((pairs < 0).mean(), percent=True),
        "smallest cosine": written(pairs.min()),
        "mean cosine": written(pairs.mean()),
    }


def _heat_maps(frames: Frames[Cosines], names: Sequence[str] | None) -> Panels:
    """Draw the heat maps that are printed, one per method; a second row is after the correction."""
    client = Axis("client")
    printed = frames.printed_frames
    views = max(len(frame.content.cosines) for frame in printed.values())
    maps = {}
    for view in range(views):
        for panel, frame in printed.items():
            content = frame.content
            packed = content.cosines[min(view, len(content.cosines) - 1)]  # there is one without a correction
            clients = names_of(content.clients, names)
            values = pd.DataFrame(unpack(packed, len(clients)), clients, clients)
            title = f"{panel}, {VIEWS[view]}" if views > 1 else panel
            maps[title] = Heat(client, client, values, Axis("cosine"), -1, 1, diverging=True)
    a_row_per_view = views > 1 and 1 < len(printed) <= MAPS_ABREAST
    return Panels(maps, columns=len(printed) if a_row_per_view else 0)


def _orders(methods: Sequence[Method], frames: Frames[Cosines]) -> dict[str, dict[str, list[int]]]:
    """Return orders of the clients for each seed, equal for all methods.

    They are named ``cluster``, by similar updates before correction, and ``class``, by dominant class; the latter is
    lacking where no run has saved its partition.
    """
    orders: dict[str, dict[str, list[int]]] = {}
    for seed in dict.fromkeys(run.seed for run in frames.runs):
        contents = [frame.content for run in frames.runs if run.seed == seed for frame in run.frames]
        matrices = [(content.clients, unpack(content.cosines[0], len(content.clients))) for content in contents]
        alike = [run for method in methods for run in method.runs if seed_of(run) == seed]
        orders[seed] = {**_order_by_class(alike), "cluster": order_by_cosines(matrices)}
    return orders


def _order_by_class(runs: Sequence[Run]) -> dict[str, list[int]]:
    """Order clients by their most frequent class, as the first run with a partition has it; empty without any."""
    for run in runs:
        counts = run.partition().get("counts")
        if counts is not None:
            return {"class": np.lexsort((-counts.max(1), counts.argmax(1))).tolist()}
    return {}


def order_by_cosines(matrices: Sequence[tuple[Sequence[int], NDArray[np.float64]]]) -> list[int]:
    """Order clients by average-linkage clustering, so that those with similar updates are neighbours.

    Args:
        matrices: for each round, the ids of its K clients and the (K, K) cosines of their updates.

    Returns:
        The clients in the order of the tree's leaves. The similarity of two clients is the mean of their cosines over
        the rounds that have both.
    """
    clients = sorted({client for ids, _ in matrices for client in ids})
    place = {client: at for at, client in enumerate(clients)}
    total = np.zeros((len(clients), len(clients)))
    count = np.zeros_like(total)
    for ids, matrix in matrices:
        places = [place[client] for client in ids]
        cells = np.ix_(places, places)
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

    Args:
        methods: the methods of the page.
        budget: largest number of characters in all frames.
    """
    frames = frames_of_files(methods, "surface", _read_surface, budget)
    if frames is None:
        return None
    printed = {}
    for panel, frame in frames.printed_frames.items():
        printed[panel] = Surface(np.array(frame.content.steps, float), np.array(frame.content.loss, float))
    return Chart(
        key="surface",
        title="Loss surface around the global model",
        caption="Loss along two random, filter-normalised directions, the same for all runs; the cross is the model. "
        "A wide dark basin is a flat minimum. Colours are logarithmic." + frames.note,
        alt="Contour plots of the loss along two random directions around the global model, one plot per method",
        plot=Panels(printed),
        numbers=table_of_frames(frames, "Loss surfaces"),
        frames=frames,
        wide=True,
    )


def _read_surface(path: Path) -> Frame[LossGrid]:
    arrays = load(path, "steps", "loss")
    steps, loss = arrays["steps"], arrays["loss"]
    centre = np.abs(steps).argmin()
    text = {
        "loss of the model": written(float(loss[centre, centre])),
        "lowest": written(float(np.fmin.reduce(loss, axis=None))),  # fmin and fmax leave out nan
        "highest": written(float(np.fmax.reduce(loss, axis=None))),
    }
    return Frame([text], LossGrid(rounded(steps), [rounded(row) for row in loss]))
