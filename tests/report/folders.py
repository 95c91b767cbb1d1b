"""Run folders written by hand, as ``fl-lightning report`` reads them, and what a page says read back."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fl_lightning.runs.folder.files import RoundTime

TIMES = [field.name for field in fields(RoundTime)][1:]  # columns of timings.csv, after the round
NAMES = ["oslo", "lyon, hôpital de la <b>Croix</b>", "17", "bern"]  # a comma, markup, a number, and all unsorted
MONITOR = "Monitor$|LossSurface|SaveCohorts"  # callbacks that are no rules


def config(*rules: str, seed: int = 1, alpha: float = 0.1) -> dict[str, Any]:
    """A run's config with these callbacks."""
    callbacks = [{"class_path": f"fl_lightning.callbacks.{name}", "init_args": {}} for name in rules]
    return {
        "seed_everything": seed,
        "trainer": {"max_epochs": 4, "callbacks": callbacks, "devices": "auto"},
        "data": {
            "class_path": "fl_lightning.datamodules.Digits",
            "init_args": {"num_clients": 4, "partition": {"class_path": "Dirichlet", "init_args": {"alpha": alpha}}},
        },
        "experiment": f"seed {seed}",
    }


def write(
    folder: Path,
    metrics: Mapping[str, Sequence[float | str]],
    config: Mapping[str, Any] | None = None,
    timings: Mapping[str, Sequence[float]] | None = None,
    environment: Mapping[str, Any] | None = None,
    better: Mapping[str, str | None] | None = None,
    **arrays: Mapping[str, Any],
) -> Path:
    """A run folder: columns of metrics.csv and timings.csv by name, rounds from 1, "" for an empty cell; arrays.

    Times that are not given are 0.
    The environment names the rules among the config's callbacks, unless it is given and does.
    """
    if config:
        classes = [each["class_path"].rpartition(".")[2] for each in config["trainer"]["callbacks"]]
        environment = {"rules": [name for name in classes if not re.search(MONITOR, name)], **(environment or {})}
    if timings:
        timings = dict.fromkeys(TIMES, [0] * max(map(len, timings.values()))) | timings
    folder.mkdir(parents=True)
    for name, columns in (("metrics", metrics), ("timings", timings)):
        if columns:
            with (folder / f"{name}.csv").open("w", newline="") as file:
                rows = zip(*columns.values(), strict=True)
                csv.writer(file).writerows([["round", *columns], *([n, *row] for n, row in enumerate(rows, 1))])
    for name, content in (("config", config), ("environment", environment), ("better", better)):
        if content:
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    if arrays:
        (folder / "arrays").mkdir()
    for name, content in arrays.items():
        np.savez(folder / "arrays" / f"{name}.npz", **content)
    return folder


def similar(clients: int, draw: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(K, K) cosines of random vectors."""
    vectors = draw.standard_normal((clients, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.clip(vectors @ vectors.T, -1, 1)


def large(
    folder: Path,
    rounds: int = 500,
    clients: int = 100,
    every: int = 1,
    rule: str = "GradientHarmonization",
    seed: int = 1,
) -> Path:
    """A run with all that a report shows: cosines in every n-th round, and columns of every client."""
    draw = np.random.default_rng(seed)
    steps = np.arange(1, rounds + 1)
    scalars = ["val/loss", "val/top3", "train/loss", "train/top1", "conflict/ratio", "conflict/ratio_after"]
    scalars += ["conflict/mean_cosine", "conflict/mean_cosine_after", "conflict/min_cosine", "conflict/removed"]
    scalars += ["coherence/local", "updates/drift", "updates/norm_mean", "fedlaw/gamma", "hessian/eigenvalue_1"]
    metrics = {"val/top1": 1 - 0.9 * np.exp(-steps / 80)} | {name: draw.random(rounds) for name in scalars}
    for measure in ("clients/loss", "clients/top1", "clients/update_norm", "fedlaw/weight"):
        metrics |= {f"{measure}/{client}": draw.random(rounds) for client in range(clients)}
    counts = draw.poisson(draw.gamma(0.3, 20, (clients, 10)))
    times = {"seconds": 1.0, "local": 0.7, "server": 0.1, "monitors": 0.1, "memory_mib": 900.0, "gpu_mib": 0.0}
    cosines = {
        f"cosines_{round}": {
            "clients": range(clients),
            "before": similar(clients, draw),
            "after": similar(clients, draw),
        }
        for round in range(every, rounds + 1, every)
    }
    grid = np.linspace(-1, 1, 21)
    surfaces = {
        f"surface_{round}": {"steps": grid, "loss": draw.random() + np.add.outer(grid**2, 3 * grid**2)}
        for round in range(10 * every, rounds + 1, 10 * every)
    }
    return write(
        folder,
        {name: [f"{value:.7g}" for value in values] for name, values in metrics.items()},
        config(rule, "ConflictMonitor", seed=seed),
        {name: value + 0.1 * draw.random(rounds) for name, value in times.items()},
        {"versions": {"torch": "2.15.0"}, "device": "1 x cpu"},
        partition={"sizes": counts.sum(1), "counts": counts},
        **cosines,
        **surfaces,
    )


def charts(page: str) -> dict[str, Any]:
    """What each chart of a page is drawn from, by its key."""
    found = re.findall(r'<script type="application/json" id="([^"]*)-plot-data">(.*?)</script>', page, re.DOTALL)
    return {key: json.loads(text) for key, text in found}


def curves(chart: Mapping[str, Any]) -> dict[str, list[float]]:
    """The values of a chart's lines, by name, without the edges of bands."""
    return {trace["name"]: trace["y"] for trace in chart["figure"]["data"] if trace["meta"]["role"] == "line"}


def tables(page: str) -> dict[str, list[list[str]]]:
    """The rows of each table of a page, the head first, by its caption."""
    found = re.findall(r'<table aria-label="(.*?)".*?>(.*?)</table>', page, re.DOTALL)
    return {unescape(caption): [_cells(row) for row in body.split("</tr>")[:-1]] for caption, body in found}


def _cells(row: str) -> list[str]:
    cells = re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL)
    return [unescape(re.sub("<.*?>", "", cell)).replace("\N{NO-BREAK SPACE}", " ") for cell in cells]
