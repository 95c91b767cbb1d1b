"""What it costs to deal the examples to the clients, the splitting into one tensor per client included.

50,000 examples of 10 classes go to few and to many clients; medians of the interleaved repetitions, in seconds. The
groups of ``Natural`` are as many as the clients, or the examples if there are fewer: it deals to no more clients.
The garbage collector rests, as it does in timeit: a pass of it over all of torch takes longer than the split it hits.

    python benchmarks/partition.py [repetitions]
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
    """What one split takes."""
    generator = np.random.default_rng(seed)
    labels = torch.from_numpy(generator.permutation(EXAMPLES) % CLASSES)
    if partition.by == "groups":
        num_clients = min(num_clients, EXAMPLES)
        labels = torch.from_numpy(generator.permutation(EXAMPLES) % num_clients)
    start = time.perf_counter()
    parts = partition.split(labels, num_clients, generator)  # kept until the clock has been read
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
