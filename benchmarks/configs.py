"""Compare shipped configs with the loop that people write, each in a process of its own, turn by turn.

The command line runs the config: one thread, its allocator, whatever the config sets for speed. The loop reads floats
in memory with a ``DataLoader`` per client and averages the clients; it runs with the system's usual allocator. Both
train 4 clients of 512 random images for one local epoch a round.
"""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks import environments
from benchmarks.common import RandomClients, quiet
from benchmarks.local import by_hand, from_loader
from benchmarks.rows import Row, duration
from fl_lightning.models import SimpleCNN, TwoLayerCNN

CLIENTS, SAMPLES, ROUNDS = 4, 512, 6
SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Case:
    """A config, the settings that make it small, and what the loop needs to train the same."""

    config: str
    extra: tuple[str, ...]
    network: type[torch.nn.Module]
    batch_size: int
    optimizer: dict[str, float]
    aim: str


CASES = {
    case.config: case
    for case in (
        Case("cifar10_gh.yaml", (), TwoLayerCNN, 128, {"lr": 0.01}, "≤ 0.8"),
        Case(
            "cifar10_fedlaw.yaml",
            ("--trainer.callbacks", "FedAvg", "--model.local_epochs", "1", "--data.proxy_per_class", "0"),
            SimpleCNN,
            64,
            {"lr": 0.08, "momentum": 0.9, "weight_decay": 0.0005},
            "≤ 0.65",
        ),
    )
}


def rows(quick: bool, install: bool) -> Iterator[Row]:
    for case in CASES.values():
        taken: list[tuple[float, float]] = []
        for _ in range(2 if quick else 3):
            taken.append(
                (
                    _ours(case),
                    median(environments.last_line([sys.executable, "-m", __name__, case.config], 600)["seconds"]),
                )
            )
        ratios = [ours / loop for ours, loop in taken]
        ours, loop = (duration(median(column)) for column in zip(*taken, strict=True))
        name = f"{case.config}{' with FedAvg' if case.extra else ''}, {CLIENTS} clients × {SAMPLES} images"
        yield Row.over(ratios, "configs", name, "fit ÷ DataLoader loop", case.aim, f"{ours} ÷ {loop}")


def _ours(case: Case) -> float:
    """Median seconds of a config's rounds after the first two."""
    with TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        arrays: dict[str, Any] = {}
        for split, count in (("train", CLIENTS * SAMPLES), ("test", 100)):
            arrays[f"{split}_x"] = draw.integers(0, 256, (count, *SHAPE), np.uint8)
            arrays[f"{split}_y"] = np.arange(count) % 10
        np.savez(Path(folder, "random.npz"), **arrays)
        command = [str(Path(sys.executable).with_name("fl-lightning")), "fit", "--config", case.config]
        command += ["--data", "Tensors", "--data.path", "random.npz", "--data.partition", "IID"]
        command += ["--data.mean", "[0.5,0.5,0.5]", "--data.std", "[0.25,0.25,0.25]", "--data.num_classes", "10"]
        command += ["--data.num_clients", str(CLIENTS), "--trainer.max_epochs", str(ROUNDS)]
        command += ["--trainer.limit_val_batches", "0", "--experiment", "timed", *case.extra]
        with environments.started(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
            _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{case.config} does not run: {errors[-500:]}")
        with Path(folder, "runs", "timed", "version_0", "timings.csv").open() as file:
            return median([float(row["seconds"]) for row in csv.DictReader(file)][2:])


def _loop(case: Case) -> list[float]:
    """Seconds of the loop's rounds after the first two."""
    quiet(keep=False)
    data = RandomClients(CLIENTS, SAMPLES, SHAPE, batch_size=case.batch_size)
    train = by_hand(case.network(), data, from_loader(case.batch_size), **case.optimizer)
    return [train() for _ in range(ROUNDS)][2:]


if __name__ == "__main__":
    print(json.dumps({"seconds": _loop(CASES[sys.argv[1]])}))
