"""The section on clients: a table with sparklines, the examples that each holds, conflict against accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_lightning.report.compared.methods import Method
from fl_lightning.report.content.by_round import client_names, names_of, runs_with, seed_of, table_of_frames
from fl_lightning.report.drawing.plots import Axis, Bubbles, Dots, Panels
from fl_lightning.report.elements import (
    Chart,
    ClientsTable,
    Frame,
    Frames,
    FramesOfRun,
    Measure,
    MeasuredClients,
    RunOfClients,
    Table,
)
from fl_lightning.report.numbers import rounded, thin, written
from fl_lightning.runs.catalogue import about, is_item
from fl_lightning.runs.reader import Run, load

SHOWN_CLIENTS = 10_000  # about the largest number of clients of all runs in the table
DOTS = 2_000  # about the largest number of dots in a scatter plot
SPARK_POINTS = 250_000  # about the largest number of points in all sparklines
LISTED_DOTS = 200  # largest number of dots in the scatter plot's table
BUBBLE_CLIENTS = 100  # largest number of clients in a bubble plot
NARROW_CLIENTS = 40  # largest number of clients in a bubble plot of half the page's width
LONGEST_SPARK, SHORTEST_SPARK = 40, 8  # points of a sparkline
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # heights of a sparkline's points
ITEMS = "(?:clients|personal|held_out|own|new|new_tuned)/.*|fedlaw/weight"
HELD_OUT, TRAINED = "held_out/top1", "clients/top1"  # the accuracy of a client, on its held-out or training examples


@dataclass(frozen=True)
class HeldExamples:
    """The examples of each class at each client, as explore.js reads them.

    Attributes:
        held: three lists of equal length: the client, the class, and the client's number of examples of the class.
    """

    held: tuple[Sequence[int], Sequence[int], Sequence[int]]


def clients_table(methods: Sequence[Method]) -> ClientsTable | None:
    """Describe the clients of all runs for the page's table; None if no run knows any client."""
    runs = [(number, run) for number, method in enumerate(methods) for run in method.runs]
    prefixes: dict[str, None] = {}
    largest_first: dict[Run, list[int]] = {}
    for _, run in runs:
        prefixes |= dict.fromkeys(_prefixes(run))
        largest_first[run] = _rank_clients(run)
    measures = {prefix: _measure(prefix, [run.items(prefix) for _, run in runs]) for prefix in prefixes}
    most = max(20, SHOWN_CLIENTS // len(runs))
    sparklines = sum(min(most, len(clients)) for clients in largest_first.values()) * max(1, len(measures))
    points = max(SHORTEST_SPARK, min(LONGEST_SPARK, SPARK_POINTS // max(1, sparklines)))
    rows = []
    for number, run in runs:
        clients = sorted(largest_first[run][:most])
        if clients:
            columns = {title: _as_column(values.reindex(clients)) for title, values in _facts(run).items()}
            values = [_values(run.items(prefix), clients, measure, points) for prefix, measure in measures.items()]
            rows.append(RunOfClients(number, seed_of(run), len(largest_first[run]), clients, columns, values))
    return ClientsTable(list(measures.values()), rows) if rows else None


def _prefixes(run: Run) -> list[str]:
    return list(dict.fromkeys(name.rpartition("/")[0] for name in run.names if is_item(name, ITEMS)))


def _measure(prefix: str, tables: Sequence[pd.DataFrame]) -> Measure:
    """Describe the metrics ``prefix/<n>``, whose sparklines go from the smallest to the largest value of all runs."""
    values = np.concatenate([table.to_numpy().ravel() for table in tables])
    values = values[np.isfinite(values)]
    low, high = 0.0, 1.0
    if len(values):
        low, high = float(values.min()), float(values.max())
    known = about(f"{prefix}/*")
    return Measure(known.title.removesuffix("/*"), known.percent, low, high)


def _rank_clients(run: Run) -> list[int]:
    """Return the known clients of a run, those with the most examples first."""
    sizes = dict(enumerate(run.partition().get("sizes", ())))
    known = {*sizes}
    for prefix in _prefixes(run):
        known |= {int(str(number)) for number in run.items(prefix)}
    return sorted(known, key=lambda client: (-int(sizes.get(client, 0)), client))


def _facts(run: Run) -> dict[str, pd.Series]:
    """Return what is known of the clients of a run besides the measures, by title and client."""
    columns: dict[str, pd.Series] = {}
    if arrays := run.partition():
        columns["examples"] = pd.Series(arrays["sizes"])
        if "counts" in arrays:
            columns["classes"] = pd.Series((arrays["counts"] > 0).sum(1))
            columns["main class"] = pd.Series(arrays["counts"].argmax(1))
    rounds = {}
    for prefix in _prefixes(run):
        # These models are evaluated on clients that do not take part in the round, too.
        if not prefix.startswith(("held_out/", "personal/", "new/", "new_tuned/")):
            rounds[prefix] = run.items(prefix).count()
    if rounds:
        columns["rounds"] = pd.DataFrame(rounds).max(axis=1)
    return columns


def _values(table: pd.DataFrame, clients: list[int], measure: Measure, points: int) -> MeasuredClients:
    """Collect the values of a measure in one run.

    Args:
        table: the values, a row for each round and a column for each client.
        clients: the clients to show.
        measure: the measure.
        points: largest number of points of a sparkline, each the mean over neighbouring rounds.
    """
    if not len(table):
        nothing = [None] * len(clients)
        return MeasuredClients(nothing, nothing, [""] * len(clients))
    table = table.reindex(columns=clients)
    groups = np.array_split(table.to_numpy(), min(points, len(table)))
    means = np.array([_mean_over_rounds(rounds) for rounds in groups])  # (points, clients)
    sparks = [_spark(of_client, measure.low, measure.high) for of_client in means.T]
    return MeasuredClients(_as_column(table.ffill().iloc[-1]), _as_column(table.mean()), sparks)


def _mean_over_rounds(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute each client's mean over the rounds with a value; nan if there is none."""
    counts = np.isfinite(values).sum(0)
    return np.where(counts > 0, np.nansum(values, 0) / np.maximum(counts, 1), math.nan)


def _spark(values: Iterable[float], low: float, high: float) -> str:
    """Write a sparkline, a letter for each point; a dot is a point without a value."""
    letters_per_unit = (len(LETTERS) - 1) / ((high - low) or 1)
    spark = ""
    for value in values:
        spark += LETTERS[round((value - low) * letters_per_unit)] if math.isfinite(value) else "."
    return spark


def _as_column(values: pd.Series) -> list[float | None]:
    return rounded(values.astype(float), 4)


def partition(methods: Sequence[Method]) -> Chart | None:
    """Draw the examples of each class at each client as bubbles: a panel per method, or one if all have the same."""
    every = runs_with(methods, lambda run: run.partition().get("counts", ()))
    if not every:
        return None
    counts = {(method, seed_of(run)): run.partition()["counts"] for method, run in every}
    of_seed = {seed: matrix for (_, seed), matrix in counts.items()}
    if all(np.array_equal(matrix, of_seed[seed]) for (_, seed), matrix in counts.items()):
        panel = "all methods" if len(methods) > 1 else methods[0].name
        counts = {(panel, seed): matrix for seed, matrix in of_seed.items()}
    panels = list(dict.fromkeys(panel for panel, _ in counts))
    names = client_names(methods)
    runs = []
    printed = {}  # of the first seed
    for (panel, seed), matrix in counts.items():
        runs.append(FramesOfRun(panels.index(panel), seed, [_examples(matrix)]))
        if seed == runs[0].seed:
            printed[panel] = Bubbles(matrix, names)
    frames = Frames(panels, runs)
    clients = max(map(len, counts.values()))
    caption = "A bubble's area is the number of examples of a class at a client."
    if clients > BUBBLE_CLIENTS:
        caption += f" The first {BUBBLE_CLIENTS} of {clients:,} clients are drawn."
    return Chart(
        key="partition",
        title="Examples that each client holds",
        caption=caption,
        alt="Bubble plot of the examples of each class at each client",
        plot=Panels(printed),
        numbers=table_of_frames(frames, "Partitions"),
        frames=frames,
        wide=len(panels) > 1 or clients > NARROW_CLIENTS,
    )


def _examples(counts: NDArray[np.int64]) -> Frame[HeldExamples]:
    """Describe a partition: in words all clients, in numbers the first BUBBLE_CLIENTS.

    Args:
        counts: (N, C) number of examples of each class at each client.
    """
    clients, classes = counts[:BUBBLE_CLIENTS].nonzero()
    sizes = counts[clients, classes]
    held = counts[counts.sum(1) > 0]
    text = {
        "clients with data": written(len(held)),
        "examples of a client": _span(held.sum(1)),
        f"classes of a client (of {counts.shape[1]})": _span((held > 0).sum(1)),
    }
    return Frame([text], HeldExamples((clients.tolist(), classes.tolist(), sizes.tolist())))


def _span(values: Iterable[int]) -> str:
    values = list(values)
    return f"{min(values):,} to {max(values):,}" if values else "–"


def scatter(methods: Sequence[Method]) -> Chart | None:
    """Draw each client's conflict against its accuracy; None if no run recorded both.

    The conflict is the share of the client's pairs with a negative cosine, mean over the recorded rounds; without
    recorded cosines, the share of its update that the rules removed, mean over the rounds. The accuracy is the client's
    last one, on the client's held-out examples if a run evaluates them, else on its training examples; where some
    runs evaluate them and others do not, those others are left out.
    """
    every = [(method.name, run) for method in methods for run in method.runs]
    measured = any(run.arrays("cosines") for _, run in every)
    held_out = any(len(run.items(HELD_OUT)) for _, run in every)
    tables = {run: _conflict_and_accuracy(run, measured, held_out) for _, run in every}
    largest = max(map(len, tables.values()))
    seeds = list(dict.fromkeys(seed_of(run) for _, run in every))
    kept = seeds[: max(1, DOTS // max(1, largest * len(methods)))]
    names = client_names(methods)
    parts: dict[str, list[pd.DataFrame]] = {}
    for method, run in every:
        table = tables[run]
        if seed_of(run) in kept and len(table):
            labels = [f"client {name}, seed {seed_of(run)}" for name in names_of(table.index, names)]
            parts.setdefault(method, []).append(table.assign(name=labels, client=table.index))
    if not parts:
        return None
    dots = {method: pd.concat(of_runs) for method, of_runs in parts.items()}
    x = "share of a client's pairs in conflict" if measured else "share of the update that rules removed"
    y = "accuracy on the client's held-out examples" if held_out else "training accuracy of the client"
    correlations = []
    for method, table in dots.items():
        correlations.append(f"{method} {written(round(_rank_correlation(table['x'], table['y']), 2))}")
    in_words = f"Rank correlation: {'; '.join(correlations)}."
    caption = "Each dot is a client, with its conflict (before correction, mean over the rounds) and last accuracy. "
    caption += in_words
    if len(kept) < len(seeds):
        caption += f" Seeds {', '.join(kept)}."
    return Chart(
        key="scatter",
        title="Conflict of a client against its accuracy",
        caption=caption,
        alt=f"Scatter plot: {y} by {x}. {in_words}",
        plot=Dots(Axis(x, percent=True), Axis(y, percent=True), dots),
        numbers=_table_of_dots(dots, x, y),
    )


def _rank_correlation(x: pd.Series, y: pd.Series) -> float:
    """Compute Spearman's rank correlation; nan if all values of x or of y are equal."""
    if x.nunique() < 2 or y.nunique() < 2:
        return math.nan
    return float(x.corr(y, method="spearman"))


def _conflict_and_accuracy(run: Run, measured: bool, held_out: bool) -> pd.DataFrame:
    """Tabulate ``x``, the conflict, and ``y``, the last accuracy, of the clients that have both.

    Args:
        run: the run.
        measured: whether the conflict is that of recorded cosines.
        held_out: whether the accuracy is that on held-out examples.
    """
    conflict = _conflict(run) if measured else run.items("clients/removed").mean()
    table = run.items(HELD_OUT if held_out else TRAINED)
    accuracy = table.ffill().iloc[-1] if len(table) else pd.Series(dtype=float)
    return pd.DataFrame({"x": conflict, "y": accuracy}).dropna()


def _conflict(run: Run) -> pd.Series:
    """Compute the share of each client's pairs with a negative cosine before correction, mean over recorded rounds."""
    shares = []
    for path in run.arrays("cosines").values():
        arrays = load(path, "clients", "before")
        negative = (arrays["before"] < 0).sum(1)  # never with itself
        shares.append(pd.Series(negative / max(1, len(negative) - 1), arrays["clients"].tolist()))
    if not shares:
        return pd.Series(dtype=float)
    return pd.concat(shares, axis=1).mean(axis=1)


def _table_of_dots(dots: Mapping[str, pd.DataFrame], x: str, y: str) -> Table:
    every = []
    for method, table in dots.items():
        for name, conflict, accuracy in table[["name", "x", "y"]].itertuples(index=False):
            every.append([method, name, written(conflict, True), written(accuracy, True)])
    rows = [every[place] for place in thin(len(every), LISTED_DOTS)]
    return Table(["method", "client", x, y], rows, "Clients: conflict and accuracy")
