"""The section on clients: a table with sparklines, the examples that each holds, conflict against accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_lightning.report.compared.methods import Method
from fl_lightning.report.content.by_round import client_names, named, runs_with, seed_of, tabulated
from fl_lightning.report.drawing.plots import Axis, Bubbles, Dots, Panels
from fl_lightning.report.elements import Chart, Frames, Table
from fl_lightning.report.numbers import rounded, thin, written
from fl_lightning.runs.catalogue import about, is_item
from fl_lightning.runs.reader import Run, load

SHOWN_CLIENTS = 10_000  # about the largest number of clients of all runs in the table
DOTS = 2_000  # about the largest number of dots in a scatter plot
SPARK_POINTS = 250_000  # about the largest number of points in all sparklines
BUBBLE_CLIENTS = 100  # largest number of clients in a bubble plot
NARROW_CLIENTS = 40  # largest number of clients in a bubble plot of half the page's width
LONGEST_SPARK, SHORTEST_SPARK = 40, 8  # points of a sparkline
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # heights of a sparkline's points
ITEMS = "(?:clients|personal|held_out|own)/.*|fedlaw/weight"
ACCURACY = ("held_out/top1", "clients/top1")  # the first one that a run has is a client's accuracy


def listed(methods: Sequence[Method]) -> dict[str, Any]:
    """Describe the clients of all runs for the page's table, see clients.js.

    Returns:
        Empty without clients; else ``measures`` (``title``, ``percent``, and the ends ``low`` and ``high`` of its
        sparklines) and ``runs``, each with the number of the ``method``, the ``seed``, the ``clients``, other
        ``columns`` by title (one number per client), and for each measure ``last``, ``mean`` and ``sparks``: one text
        per client, one letter per round (0 for the low end, z for the high one, a dot for a round without a value).
    """
    every = [(at, run) for at, method in enumerate(methods) for run in method.runs]
    prefixes = list(dict.fromkeys(prefix for _, run in every for prefix in _prefixes(run)))
    ends = {prefix: _ends([run.items(prefix) for _, run in every]) for prefix in prefixes}
    most = max(20, SHOWN_CLIENTS // len(every))
    runs = [(at, run, *found) for at, run in every if (found := _kept(run, most))[0]]
    lines = sum(len(clients) for _, _, clients, _ in runs) * max(1, len(prefixes))
    length = max(SHORTEST_SPARK, min(LONGEST_SPARK, SPARK_POINTS // max(1, lines)))
    described = []
    for at, run, clients, of in runs:
        measures = [_measure(run.items(prefix), clients, *ends[prefix], length) for prefix in prefixes]
        columns = {name: _numbers(values.reindex(clients)) for name, values in _held(run).items()}
        facts = {"method": at, "seed": seed_of(run), "of": of, "clients": clients}
        described.append({**facts, "columns": columns, "measures": measures})
    titled = []
    for prefix, (low, high) in ends.items():
        known = about(f"{prefix}/*")
        titled.append({"title": known.title.removesuffix("/*"), "percent": known.percent, "low": low, "high": high})
    return {"measures": titled, "runs": described} if described else {}


def _prefixes(run: Run) -> list[str]:
    return list(dict.fromkeys(name.rpartition("/")[0] for name in run.names if is_item(name, ITEMS)))


def _ends(tables: Sequence[pd.DataFrame]) -> tuple[float, float]:
    values = np.concatenate([table.to_numpy().ravel() for table in tables])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


def _kept(run: Run, most: int) -> tuple[list[int], int]:
    """Return the clients to show (those with the most examples if there are too many) and the number of all clients."""
    sizes = dict(enumerate(run.partition().get("sizes", ())))
    known = {*sizes, *(int(str(number)) for prefix in _prefixes(run) for number in run.items(prefix))}
    ranked = sorted(known, key=lambda client: (-int(sizes.get(client, 0)), client))
    return sorted(ranked[:most]), len(known)


def _held(run: Run) -> dict[str, pd.Series]:
    columns: dict[str, pd.Series] = {}
    if arrays := run.partition():
        columns["examples"] = pd.Series(arrays["sizes"])
        if "counts" in arrays:
            columns["classes"] = pd.Series((arrays["counts"] > 0).sum(1))
            columns["main class"] = pd.Series(arrays["counts"].argmax(1))
    # These models are evaluated on all clients, whether they take part in the round or not.
    prefixes = [prefix for prefix in _prefixes(run) if not prefix.startswith(("held_out/", "personal/"))]
    counted = {prefix: run.items(prefix).count() for prefix in prefixes}
    return columns | ({"rounds": pd.DataFrame(counted).max(axis=1)} if counted else {})


def _measure(table: pd.DataFrame, clients: list[int], low: float, high: float, length: int) -> dict[str, Any]:
    table = table.reindex(columns=clients)
    last = table.ffill().iloc[-1] if len(table) else pd.Series(math.nan, clients)
    groups = np.array_split(table.to_numpy(), min(length, len(table))) if len(table) else []
    points = np.array([_mean(group) for group in groups]).reshape(-1, len(clients)).T
    sparks = [_spark(row, low, high) for row in points]
    return {"last": _numbers(last), "mean": _numbers(table.mean()), "sparks": sparks}


def _mean(rows: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    counts = np.isfinite(rows).sum(0)
    return np.where(counts > 0, np.nansum(rows, 0) / np.maximum(counts, 1), math.nan)


def _spark(values: Iterable[float], low: float, high: float) -> str:
    top = (len(LETTERS) - 1) / ((high - low) or 1)
    return "".join(LETTERS[round((value - low) * top)] if math.isfinite(value) else "." for value in values)


def _numbers(values: pd.Series) -> list[float | None]:
    return rounded(values.astype(float), 4)


def partition(methods: Sequence[Method]) -> Chart | None:
    """Draw the examples of each class at each client as bubbles: a panel per method, or one if all have the same."""
    every = runs_with(methods, lambda run: run.partition().get("counts", ()))
    counts = {(name, seed_of(run)): run.partition()["counts"] for name, run in every}
    if not counts:
        return None
    first = {seed: each for (_, seed), each in counts.items()}
    if all(np.array_equal(each, first[seed]) for (_, seed), each in counts.items()):
        counts = {("all methods" if len(methods) > 1 else methods[0].name, seed): each for seed, each in first.items()}
    panels = list(dict.fromkeys(name for name, _ in counts))
    held = {name: _examples(each) for name, each in counts.items()}
    runs = [{"panel": panels.index(name), "seed": seed, "frames": [each]} for (name, seed), each in held.items()]
    frames, most = Frames(panels, runs), max(map(len, counts.values()))
    names, first_seed = client_names(methods), runs[0]["seed"]
    return Chart(
        key="partition",
        title="Examples that each client holds",
        caption="A bubble's area is the number of examples of a class at a client."
        + (f" The first {BUBBLE_CLIENTS} of {most:,} clients are drawn." if most > BUBBLE_CLIENTS else ""),
        alt="Bubble plot of the examples of each class at each client",
        plot=Panels({name: Bubbles(each, names) for (name, seed), each in counts.items() if seed == first_seed}),
        numbers=tabulated(frames, "Partitions"),
        frames=frames,
        wide=len(panels) > 1 or most > NARROW_CLIENTS,
    )


def _examples(counts: NDArray[np.int64]) -> dict[str, Any]:
    clients, classes = counts[:BUBBLE_CLIENTS].nonzero()
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


def scatter(methods: Sequence[Method]) -> Chart | None:
    """Draw each client's conflict against its accuracy; None if no run recorded both.

    The conflict is the share of the client's pairs with a negative cosine, mean over the recorded rounds; without
    recorded cosines, the share of its update that the rules removed, mean over the rounds. The accuracy is the client's
    last one, on the client's held-out examples if a run evaluates them, else on its training examples.
    """
    every = [(method.name, run) for method in methods for run in method.runs]
    measured = any(run.arrays("cosines") for _, run in every)
    seeds = list(dict.fromkeys(seed_of(run) for _, run in every))
    tables = {run: _conflict_and_accuracy(run, measured) for _, run in every}
    kept = seeds[: max(1, DOTS // max(1, max(map(len, tables.values())) * len(methods)))]
    dots: dict[str, list[pd.DataFrame]] = {}
    names = client_names(methods)
    for name, run in every:
        if seed_of(run) in kept and len(table := tables[run]):
            called = [f"client {each}, seed {seed_of(run)}" for each in named(table.index, names)]
            dots.setdefault(name, []).append(table.assign(name=called, client=table.index))
    if not dots:
        return None
    drawn = {name: pd.concat(tables) for name, tables in dots.items()}
    held_out = any(len(run.items(ACCURACY[0])) for _, run in every)
    x = "share of a client's pairs in conflict" if measured else "share of the update that rules removed"
    y = "accuracy on the client's held-out examples" if held_out else "training accuracy of the client"
    correlated = {name: _rank_correlation(each["x"], each["y"]) for name, each in drawn.items()}
    spoken = "; ".join(f"{name} {written(round(value, 2))}" for name, value in correlated.items())
    return Chart(
        key="scatter",
        title="Conflict of a client against its accuracy",
        caption="Each dot is a client, with its conflict (before correction, mean over the rounds) and last accuracy. "
        f"Rank correlation: {spoken}." + (f" Seeds {', '.join(kept)}." if len(kept) < len(seeds) else ""),
        alt=f"Scatter plot: {y} by {x}. Rank correlation: {spoken}.",
        plot=Dots(Axis(x, percent=True), Axis(y, percent=True), drawn),
        numbers=_table(drawn, x, y),
    )


def _rank_correlation(x: pd.Series, y: pd.Series) -> float:
    """Compute Spearman's rank correlation; nan if all values of x or of y are equal."""
    return float(x.corr(y, method="spearman")) if x.nunique() > 1 and y.nunique() > 1 else math.nan


def _conflict_and_accuracy(run: Run, measured: bool) -> pd.DataFrame:
    accuracies = [table.ffill().iloc[-1] for prefix in ACCURACY if len(table := run.items(prefix))]
    conflict = _conflict(run) if measured else run.items("clients/removed").mean()
    return pd.DataFrame({"x": conflict, "y": accuracies[0] if accuracies else pd.Series(dtype=float)}).dropna()


def _conflict(run: Run) -> pd.Series:
    """Compute the share of each client's pairs with a negative cosine before correction, mean over recorded rounds."""
    shares = []
    for path in run.arrays("cosines").values():
        arrays = load(path, "clients", "before")
        negative = (arrays["before"] < 0).sum(1)  # never with itself
        shares.append(pd.Series(negative / max(1, len(negative) - 1), arrays["clients"].tolist()))
    return pd.concat(shares, axis=1).mean(axis=1) if shares else pd.Series(dtype=float)


def _table(dots: dict[str, pd.DataFrame], x: str, y: str) -> Table:
    every = [(name, *row) for name, each in dots.items() for row in each[["name", "x", "y"]].itertuples(index=False)]
    shown = [every[at] for at in thin(len(every), 200)]
    rows = [[name, who, written(a, True), written(b, True)] for name, who, a, b in shown]
    return Table(["method", "client", x, y], rows, "Clients: conflict and accuracy")
