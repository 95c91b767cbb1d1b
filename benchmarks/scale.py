"""Measure what many clients cost: the setup, and a round beyond training, with 10 clients per round.

A client holds 8 of 1,000 shared examples; or, with the name of a partition, the part of 5 × NUM_CLIENTS examples that
the partition deals to the client: then 100 clients take part in a round, and the most memory beyond the examples is
measured, too, in MiB. Each size runs in a process of its own:

    python -m benchmarks.scale NUM_CLIENTS [PARTITION]
"""

import json
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from benchmarks.common import bare_trainer, quiet
from benchmarks.environments import UnavailableError, last_line
from benchmarks.local import Module
from benchmarks.memory import Watch, held
from benchmarks.rows import Row, duration
from fl_lightning import FederatedCallback, FederatedDataModule, FederatedOrchestrator
from fl_lightning.datamodules import IID, Dirichlet, Partition, Tensors

SIZES = {"10³": 10**3, "10⁴": 10**4, "10⁵": 10**5, "10⁶": 10**6}
COHORT, SAMPLES, SHARED, ROUNDS, WARM_UP = 10, 8, 1000, 20, 3
LIMIT = 90.0
PARTITIONS: dict[str, Partition] = {"IID": IID(), "Dirichlet": Dirichlet(0.1)}


class Overlapping(FederatedDataModule):
    """Clients whose examples overlap: client k starts at example k of the shared ones."""

    def __init__(self, num_clients: int) -> None:
        super().__init__(batch_size=SAMPLES, participation=COHORT)
        self.num_clients = num_clients
        self.shared = TensorDataset(torch.randn(SHARED, 10), torch.randint(10, (SHARED,)))

    def client_dataset(self, client: int) -> Dataset[Any]:
        start = client % (SHARED - SAMPLES)
        return Subset(self.shared, range(start, start + SAMPLES))

    def client_num_samples(self, client: int) -> int:
        return SAMPLES


class Beyond(FederatedCallback):
    """Times each round less the local training of its clients."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_start(self, *_: Any) -> None:
        self.ready = self.start = time.perf_counter()
        self.training = 0.0

    def on_client_start(self, *_: Any) -> None:
        self.client = time.perf_counter()

    def on_client_end(self, *_: Any) -> None:
        self.training += time.perf_counter() - self.client

    def on_train_epoch_end(self, *_: Any) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self.start - self.training)
        self.start, self.training = now, 0.0


def measure(num_clients: int) -> dict[str, float]:
    """Return the seconds of the setup, with the first round, and the median of a later round beyond training."""
    quiet()
    start, beyond = time.perf_counter(), Beyond()
    callbacks: list[Callback] = [beyond]
    data = Overlapping(num_clients)
    bare_trainer(ROUNDS, *callbacks).fit(FederatedOrchestrator(Module(nn.Linear(10, 10))), datamodule=data)
    setup = beyond.ready - start + beyond.seconds[0]
    return {"setup": setup, "round": median(beyond.seconds[WARM_UP:])}


def deal(num_clients: int, partition: Partition) -> dict[str, float]:
    """Return what :func:`measure` does, and the memory in MiB, where a partition deals 5 examples per client."""
    quiet()
    count, beyond, watch = 5 * num_clients, Beyond(), Watch()
    train = torch.randn(count, 10), torch.randint(10, (count,))
    test = train[0][:SHARED], train[1][:SHARED]
    settings: dict[str, Any] = {"batch_size": SAMPLES, "participation": 10 * COHORT, "num_classes": 10}
    before = held()[0]
    watch.start()
    start = time.perf_counter()
    data = Tensors(train=train, test=test, num_clients=num_clients, partition=partition, **settings)
    bare_trainer(ROUNDS, beyond).fit(FederatedOrchestrator(Module(nn.Linear(10, 10))), datamodule=data)
    watch.done.set()
    setup = beyond.ready - start + beyond.seconds[0]
    return {"setup": setup, "round": median(beyond.seconds[WARM_UP:]), "memory": 1024 * (watch.own - before)}


def rows(quick: bool, install: bool) -> Iterator[Row]:
    yield from _sizes(quick)
    case, figure = "10⁶ clients of 5 examples", "setup, Dirichlet(0.1) ÷ IID"
    try:
        turns = [[_turn(SIZES["10⁶"], name)["setup"] for name in PARTITIONS] for _ in range(1 if quick else 3)]
    except UnavailableError as error:
        yield Row("scale", case, figure, note=str(error))
        return
    iid, skewed = (duration(median(seconds)) for seconds in zip(*turns, strict=True))
    ratios = [second / first for first, second in turns]
    yield Row.over(ratios, "scale", case, figure, note=f"{skewed} ÷ {iid}")


def _turn(*arguments: object) -> dict[str, float]:
    return last_line([sys.executable, "-m", "benchmarks.scale", *map(str, arguments)], LIMIT)


def _sizes(quick: bool) -> Iterator[Row]:
    base: list[dict[str, float]] = []
    for name, size in SIZES.items():
        try:
            turns = [_turn(size) for _ in range(1 if quick else 3)]
        except UnavailableError as error:
            yield Row("scale", f"{name} clients, {COHORT} a round", "÷ 10³ clients", note=str(error))
            continue
        base = base or turns
        for part, words in {"setup": "setup", "round": "a round beyond training"}.items():
            ratios = [turn[part] / first[part] for turn, first in zip(turns, base, strict=True)]
            note = duration(median(turn[part] for turn in turns))
            yield Row.over(ratios, "scale", f"{name} clients, {COHORT} a round", f"{words} ÷ 10³ clients'", note=note)


if __name__ == "__main__":
    count, *names = sys.argv[1:]
    print(json.dumps(deal(int(count), PARTITIONS[names[0]]) if names else measure(int(count))))
