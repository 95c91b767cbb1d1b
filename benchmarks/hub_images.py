"""Measure start-up and memory of images in a parquet file, beside the library that reads the file.

A file of noisy png images on 100 clients is read until the first batch of a client is there, in a process of its
own for each way: `datasets` alone (each client's rows are selected, and decoded when a batch is read), `HuggingFace`
(decoded once, in memory), and `HuggingFace` with little memory (decoded when a batch is read). Each process starts with
the file in the cache of `datasets`. The epoch is the first client's, read once more. Medians of three, interleaved.

    python -m benchmarks.hub_images [COUNT] [SIZE]
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image

from fl_lightning.datamodules import HuggingFace

WAYS = {"datasets alone": "alone", "HuggingFace": "4", "HuggingFace, memory_gib=0.1": "0.1"}
CLIENTS = 100
SHARD = 10_000  # images in a file


def write(folder: Path, count: int, size: int) -> None:
    """Write images of noise on a gradient, of ten classes, in files of 10,000."""
    draw = np.random.default_rng(0)
    ramp = np.linspace(0, 200, size).astype(np.uint8)[:, None, None]
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(num_classes=10))
    for shard in range(count // SHARD):
        noise = draw.integers(0, 16, (SHARD, size, size, 3), dtype=np.uint8)
        rows = {"image": [Image.fromarray(ramp + each) for each in noise], "label": [row % 10 for row in range(SHARD)]}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"train-{shard:05}.parquet")


def read(way: str, folder: str) -> None:
    """Print the seconds to the first batch and of a client's epoch, and the peak memory in MiB."""
    start = time.perf_counter()
    epoch = _alone(folder) if way == "alone" else _federated(folder, float(way))
    next(iter(epoch()))
    first = time.perf_counter() - start
    start = time.perf_counter()
    for _ in epoch():
        pass
    print(first, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _alone(folder: str) -> Any:
    whole = datasets.load_dataset(folder, split="train")
    rows = np.random.default_rng(0).permutation(len(whole)).reshape(CLIENTS, -1)[0]
    own: Any = whole.select(np.sort(rows)).with_format("torch")
    return lambda: torch.utils.data.DataLoader(own, 32, shuffle=True)


def _federated(folder: str, memory_gib: float) -> Any:
    data = HuggingFace(folder, num_clients=CLIENTS, memory_gib=memory_gib)
    data.setup("fit")

    def epoch() -> Iterable[Any]:
        for batch in data.client_batches(0, torch.Generator().manual_seed(0)):
            yield data.on_after_batch_transfer(batch, 0)

    return epoch


def main() -> None:
    if sys.argv[1:2] == ["read"]:
        read(*sys.argv[2:])
        return
    count, size = (int(value) for value in [*sys.argv[1:], "100000", "64"][:2])
    figures: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        write(Path(folder), count, size)
        environment = os.environ | {
            "HF_DATASETS_CACHE": cache,  # apart: the library would read its own files as data, too
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        for turn in range(4):
            for name, way in WAYS.items():
                command = [sys.executable, "-m", "benchmarks.hub_images", "read", way, folder]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                if turn:  # the first turn fills the cache
                    figures[name].append([float(value) for value in done.stdout.split()])
    print(f"{count:,} images of {size}x{size}, {CLIENTS} clients\n")
    print("| | first batch | an epoch of a client | peak memory |\n|---|---|---|---|")
    for name, rows in figures.items():
        first, epoch, memory = (median(column) for column in zip(*rows, strict=True))
        print(f"| {name} | {first:.1f} s | {epoch:.2f} s | {memory:,.0f} MiB |")


if __name__ == "__main__":
    main()
