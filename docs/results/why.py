"""Draw what the measures say about each paper's claims, from the runs of its experiments at a scale.

    python docs/results/why.py runs/reproduce/laptop docs/results

reads the results and runs of ``fl-lightning reproduce --scale laptop``, in the folder in which it was run, and writes
``why-<paper>.png`` and ``.csv`` for each paper that has the runs. A picture shows:

- FedGH: what GH adds to each baseline in each cell, over the share of the baseline's pairs of updates that conflict.
- FedMGC: the share of pairs of averaged updates that conflict, and the accuracy, by round.
- FedGAM: by how much the training loss rises around the final model, by distance.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl_lightning.report.drawing.on_paper import save
from fl_lightning.report.drawing.plots import Axis, Dots, Line, Lines, Panels, Plot
from fl_lightning.report.statistics import band
from fl_lightning.reproduce.jobs import EXPERIMENT
from fl_lightning.reproduce.outcome.numbers import axes_of
from fl_lightning.runs.reader import Run

KEYS = ["round", "seed"]


def last_rounds(folder: Path) -> pd.DataFrame:
    """Read an experiment's results after its last round; empty if it was not run."""
    path = folder / "results.csv"
    results = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=KEYS)
    return pd.DataFrame(results[results["round"] == results["round"].max()])


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """List the rows as mappings."""
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def run_of(row: Mapping[str, Any]) -> Run:
    """Open the run of a row of results."""
    return Run(Path(row["folder"]) / EXPERIMENT / "version_0")


def by_round(rows: pd.DataFrame, metric: str, factor: float = 1.0) -> pd.DataFrame:
    """Compute mean and band over the runs of the rows, by round."""
    tables = {row["seed"]: factor * run_of(row).metrics[metric].dropna() for row in records(rows)}
    return band(pd.DataFrame(tables))


def gains(results: pd.DataFrame) -> Iterator[tuple[float, float, str]]:
    """Yield the baseline's share of conflicting pairs, what GH adds in points, and the cell's name."""
    labels = [name for name in axes_of(results) if name not in {"round", "method"}]
    for row in records(results[results["method"].str.endswith("+GH")]):
        cell = {**{name: row[name] for name in [*labels, "seed"]}, "method": row["method"].removesuffix("+GH")}
        for baseline in records(results):
            if all(str(baseline[name]) == str(label) for name, label in cell.items()):
                conflict = float(run_of(baseline).metrics["conflict/ratio"].mean())
                text = ", ".join(f"{name} {label}" for name, label in {**cell, "method": row["method"]}.items())
                yield conflict, row["top1"] - baseline["top1"], text


def fedgh(folder: Path) -> Plot:
    """Plot what GH adds over conflict, one dot for each cell and seed, coloured by document."""
    found: dict[str, list[tuple[float, float, str]]] = {}
    for path in sorted(folder.glob("fedgh-*/*/results.csv")):
        results = last_rounds(path.parent)
        if {"method", "top1"} <= set(results):
            found.setdefault(path.parent.parent.name.replace("fedgh-", "the "), []).extend(gains(results))
    return Dots(
        Axis("conflicting pairs of the baseline's updates", percent=True),
        Axis("what GH adds to top-1 (points)"),
        {name: pd.DataFrame(each, columns=["x", "y", "name"]) for name, each in found.items() if each},
    )


def fedmgc(folder: Path) -> Plot:
    """Plot the conflict of the averaged updates, and accuracy, with and without each part."""
    results = last_rounds(folder / "fedmgc/fig-1")
    panels = {}
    for title, metric, factor, axis in (
        ("conflict that remains", "conflict/ratio_after", 1.0, Axis("conflicting pairs", percent=True)),
        ("accuracy", "val/top1", 100.0, Axis("top-1 (%)")),
    ):
        lines = [Line(str(name), by_round(rows, metric, factor)) for name, rows in results.groupby("method")]
        panels[title] = Lines(Axis("round"), axis, lines)
    return Panels(panels, shared=False, columns=2)


def fedgam(folder: Path) -> Plot:
    """Plot the rise of the training loss around the final model: the median over the grid's points at a distance."""
    results = last_rounds(folder / "fedgam/fig-4")
    lines = []
    for name, rows in results.groupby("method", sort=False):
        risen = {}
        for row in records(rows):
            with np.load(list(run_of(row).arrays("surface").values())[-1]) as surface:
                steps, loss = surface["steps"], surface["loss"]
            distance = np.hypot(steps[:, None], steps[None, :]).round(1)
            middle = loss[len(steps) // 2, len(steps) // 2]
            inside = distance <= steps.max()
            risen[row["seed"]] = pd.Series((loss - middle)[inside]).groupby(distance[inside]).median()
        lines.append(Line(str(name), band(pd.DataFrame(risen))))
    return Lines(Axis("distance (a filter's own norm is 1)"), Axis("rise of the training loss"), lines)


PLOTS: Mapping[str, tuple[str, Callable[[Path], Plot]]] = {
    "fedgh": ("fedgh-*/*", fedgh),
    "fedmgc": ("fedmgc/fig-1", fedmgc),
    "fedgam": ("fedgam/fig-4", fedgam),
}


def main(folder: str, out: str) -> None:
    """Draw all plots whose experiments have results."""
    for name, (needed, plot) in PLOTS.items():
        if list(Path(folder).glob(f"{needed}/results.csv")):
            save(plot(Path(folder)), Path(out), f"why-{name}", kinds=("png",))
            print(f"{out}/why-{name}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
