"""Measure the time that each partition takes to deal the examples to the clients.

50,000 examples of 10 classes are dealt to few and to many clients, including the split into one tensor per client. The
table shows medians of the interleaved repetitions, in seconds. ``Natural`` gets as many groups as clients, but at most
one group per example, and deals to as many clients as groups. The garbage collector is off, as in timeit: one pass over
all of torch's objects takes longer than a split.

    python -m benchmarks.partition [repetitions]
"""

import gc
import sys
import time
from statistics import median

import numpy as np
import torch

from fl_lightning.datamodules.partition import (
    IID,
    ClassesPerClient,
    Dirichlet,
    HybridDirichlet,
    Natural,
    Partition,
    QuantitySkew,
)

EXAMPLES, CLASSES = 50_000, 10
NUM_CLIENTS = (100, 100_000)
PARTITIONS: dict[str, Partition] = {
    "IID": IID(),
    "Dirichlet(0.1), class": Dirichlet(0.1),
    "Dirichlet(0.1), client": Dirichlet(0.1, form="client"),
    "Dirichlet(0.1), rebalanced": Dirichlet(0.1, form="rebalanced", min_samples=0),
    "HybridDirichlet, class": HybridDirichlet(),
    "HybridDirichlet, client": HybridDirichlet(form="client"),
    "ClassesPerClient(2)": ClassesPerClient(2),
    "QuantitySkew(0.1)": QuantitySkew(0.1),
    "Natural": Natural(),
}


def seconds(partition: Partition, num_clients: int, seed: int) -> float:
    """Seconds of one split."""
    generator = np.random.default_rng(seed)
    labels = torch.from_numpy(generator.permutation(EXAMPLES) % CLASSES)
    if partition.by == "groups":
        num_clients = min(num_clients, EXAMPLES)
        labels = torch.from_numpy(generator.permutation(EXAMPLES) % num_clients)
    start = time.perf_counter()
    parts = partition.split(labels, num_clients, generator)  # kept alive until the clock has been read
    taken = time.perf_counter() - start
    assert len(parts) == num_clients
    return taken


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.disable()
    times: dict[tuple[str, int], list[float]] = {(name, n): [] for name in PARTITIONS for n in NUM_CLIENTS}
    for repetition in range(int(sys.argv[1]) if len(sys.argv) > 1 else 7):
        for (name, num_clients), taken in times.items():
            taken.append(seconds(PARTITIONS[name], num_clients, repetition))
    print(f"| partition | {' | '.join(f'{n:,} clients' for n in NUM_CLIENTS)} |\n|---|{'---|' * len(NUM_CLIENTS)}")
    for name in PARTITIONS:
        print(f"| {name} | {' | '.join(f'{median(times[name, n]):.3f}' for n in NUM_CLIENTS)} |")
