"""The table of clients with sparklines, and the scatter of conflict against accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fl_lightning.report.frames import client_name, client_names, seed_of
from fl_lightning.report.methods import Method
from fl_lightning.report.numbers import rounded, thin, written
from fl_lightning.report.parts import Chart, Table
from fl_lightning.report.plots import Axis, Dots
from fl_lightning.runs.catalogue import about, is_item
from fl_lightning.runs.reader import Run, load

SHOWN = 10_000  # about the largest number of clients of all runs in the table
DOTS = 2_000  # about the largest number of dots in a scatter plot
SPARKS = 250_000  # about the largest number of points in all sparklines
LONGEST, SHORTEST = 40, 8  # points of a sparkline
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # heights of a sparkline's points
ITEMS = "(?:clients|held_out|own)/.*|fedlaw/weight"
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
    tables = {(run.folder, prefix): run.items(prefix) for _, run in every for prefix in prefixes}
    ends = {prefix: _ends([tables[run.folder, prefix] for _, run in every]) for prefix in prefixes}
    most = max(20, SHOWN // len(every))
    runs = [(at, run, found[0], found[1]) for at, run in every if (found := _kept(run, most))[0]]
    lines = sum(len(clients) for _, _, clients, _ in runs) * max(1, len(prefixes))
    length = max(SHORTEST, min(LONGEST, SPARKS // max(1, lines)))
    described = []
    for at, run, clients, of in runs:
        measures = [_measure(tables[run.folder, prefix], clients, *ends[prefix], length) for prefix in prefixes]
        columns = {name: _numbers(values.reindex(clients)) for name, values in _held(run).items()}
        described.append(
            {"method": at, "seed": seed_of(run), "of": of, "clients": clients, "columns": columns, "measures": measures}
        )
    titles = [about(f"{prefix}/*").title.removesuffix("/*") for prefix in prefixes]
    percent = [about(f"{prefix}/*").percent for prefix in prefixes]
    measures = [
        {"title": title, "percent": share, "low": ends[prefix][0], "high": ends[prefix][1]}
        for title, share, prefix in zip(titles, percent, prefixes, strict=True)
    ]
    return {"measures": measures, "runs": described} if described else {}


def _prefixes(run: Run) -> list[str]:
    return list(dict.fromkeys(name.rpartition("/")[0] for name in run.names if is_item(name, ITEMS)))


def _ends(tables: Sequence[pd.DataFrame]) -> tuple[float, float]:
    values = np.concatenate([table.to_numpy().ravel() for table in tables])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


def _kept(run: Run, most: int) -> tuple[list[int], int]:
    """Return the clients to show (those with the most examples if there are too many) and the number of all clients."""
    sizes = run.partition().get("sizes")
    known = set(range(len(sizes))) if sizes is not None else set()
    for prefix in _prefixes(run):
        known |= {int(str(number)) for number in run.items(prefix)}
    ranked = sorted(known, key=lambda k: (-int(sizes[k]) if sizes is not None and k < len(sizes) else 0, k))
    return sorted(ranked[:most]), len(known)


def _held(run: Run) -> dict[str, pd.Series]:
    columns: dict[str, pd.Series] = {}
    if arrays := run.partition():
        columns["examples"] = pd.Series(arrays["sizes"])
        if "counts" in arrays:
            columns["classes"] = pd.Series((arrays["counts"] > 0).sum(1))
            columns["main class"] = pd.Series(arrays["counts"].argmax(1))
    # The global model is evaluated on all clients, whether they take part in the round or not.
    prefixes = [prefix for prefix in _prefixes(run) if not prefix.startswith("held_out/")]
    counted = {prefix: run.items(prefix).count() for prefix in prefixes}
    return columns | ({"rounds": pd.DataFrame(counted).max(axis=1)} if counted else {})


def _measure(table: pd.DataFrame, clients: list[int], low: float, high: float, length: int) -> dict[str, Any]:
    table = table.reindex(columns=clients)
    last = table.ffill().iloc[-1] if len(table) else pd.Series(math.nan, clients)
    groups = np.array_split(table.to_numpy(), min(length, len(table))) if len(table) else []
    points = np.array([_mean(group) for group in groups]).reshape(-1, len(clients)).T
    return {
        "last": _numbers(last),
        "mean": _numbers(table.mean()),
        "sparks": [_spark(row, low, high) for row in points],
    }


def _mean(rows: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    counts = np.isfinite(rows).sum(0)
    return np.where(counts > 0, np.nansum(rows, 0) / np.maximum(counts, 1), math.nan)


def _spark(values: Iterable[float], low: float, high: float) -> str:
    top = (len(LETTERS) - 1) / ((high - low) or 1)
    return "".join(LETTERS[round((value - low) * top)] if math.isfinite(value) else "." for value in values)


def _numbers(values: pd.Series) -> list[float | None]:
    return rounded(values.astype(float), 4)


def scatter(methods: Sequence[Method]) -> Chart | None:
    """Draw each client's conflict against its accuracy; None if no run recorded both.

    The conflict is the share of the client's pairs with a negative cosine, mean over the recorded rounds; without
    recorded cosines, the share of its update that the rules removed, mean over the rounds. The accuracy is the client's
    last one, on the client's held-out examples if a run evaluates them, else on its training examples.
    """
    every = [(method.name, run) for method in methods for run in method.runs]
    having = [(name, run, _accuracy(run)) for name, run in every]
    measured = any(run.arrays("cosines") for _, run in every)
    seeds = list(dict.fromkeys(seed_of(run) for _, run in every))
    found = []
    for name, run, (called, accuracy) in having:
        conflict = _conflict(run) if measured else run.items("clients/removed").mean()
        table = pd.DataFrame({"x": conflict, "y": accuracy}).dropna()
        found.append((name, seed_of(run), called, table))
    one = max((len(table) for _, _, _, table in found), default=0)
    kept = seeds[: max(1, DOTS // max(1, one * len(methods)))]
    dots: dict[str, list[pd.DataFrame]] = {}
    names = client_names(methods)
    for name, seed, _, table in found:
        if seed in kept and len(table):
            named = [f"client {client_name(client, names)}, seed {seed}" for client in table.index]
            dots.setdefault(name, []).append(table.assign(name=named, client=table.index))
    if not dots:
        return None
    drawn = {name: pd.concat(tables) for name, tables in dots.items()}
    held_out = any(called == ACCURACY[0] for _, _, called, _ in found)
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


def _accuracy(run: Run) -> tuple[str, pd.Series]:
    for prefix in ACCURACY:
        if len(table := run.items(prefix)):
            return prefix, table.ffill().iloc[-1]
    return "", pd.Series(dtype=float)


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
