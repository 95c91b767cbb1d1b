"""Measure the cost of data sets: time of the first and of later loadings, memory, and images per second.

For each data set, the table shows: seconds until the clients are partitioned, first with an empty cache, then with the
cache filled (a data set without images to decode is read from its own files both times); MiB in memory; images per
second through normalisation alone, and through AutoAugment and normalisation, in batches of 64 and 128, on one CPU
thread. Times of later loadings and of batches are medians.

    python -m benchmarks.data MNIST=DIR CIFAR10=DIR
"""

import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median

import torch

from fl_lightning import datamodules
from fl_lightning.datamodules import AutoAugment
from fl_lightning.datamodules.images.published import PublishedImages
from fl_lightning.engine.federation.batches import TrainingBatch

BATCHES = 30


def seconds(run: Callable[[], object], times: int = 1) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return median(taken)


def images_per_second(data: PublishedImages, batch_size: int) -> float:
    images, labels = (tensor[:batch_size] for tensor in data._dealt.examples.tensors)
    data.on_after_batch_transfer(TrainingBatch([images, labels]), 0)  # caches the constants of normalisation
    return batch_size / seconds(lambda: data.on_after_batch_transfer(TrainingBatch([images, labels]), 0), BATCHES)


def measure(name: str, root: str) -> str:
    """Return the table row of one data set."""
    make: type[PublishedImages] = getattr(datamodules, name)

    def load(cache: str) -> PublishedImages:
        data = make(root=root, cache=cache, num_clients=100)
        data.prepare_data()
        data.setup("fit")
        return data

    with tempfile.TemporaryDirectory() as cache:
        first = seconds(lambda: load(cache))
        second = seconds(lambda: load(cache), 5)
        data = load(cache)
        tensors = [*data._dealt.examples.tensors, *data._dealt.evaluation.tensors]
        size = sum(tensor.nbytes for tensor in tensors) / 2**20
        plain = [images_per_second(data, size) for size in (64, 128)]
        data.augment = [AutoAugment()]
        augmented = [images_per_second(data, size) for size in (64, 128)]
    rates = " | ".join(f"{rate:,.0f}" for rate in (*plain, *augmented))
    return f"| {name} | {first:.2f} s | {second:.2f} s | {size:.0f} MiB | {rates} |"


def main() -> None:
    torch.set_num_threads(1)
    print("| | first run | later runs | in memory | plain, 64 | plain, 128 | AutoAugment, 64 | AutoAugment, 128 |")
    print("|---|---|---|---|---|---|---|---|")
    for argument in sys.argv[1:]:
        print(measure(*argument.split("=", 1)), flush=True)


if __name__ == "__main__":
    main()
