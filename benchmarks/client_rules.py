"""Measure the cost of each client rule relative to FedAvg.

The 2NN trains on 10 clients of 512 random images, batch 64, one local epoch, three rounds per run, one thread. The runs
of all rules are interleaved. The table shows, for each rule, the median ratio of the last round's time to FedAvg's.

    python benchmarks/client_rules.py [repetitions]
"""

import logging
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning import callbacks as rules
from fl_lightning.engine.allocator import keep_freed_memory
from fl_lightning.models import ImageClassifier, TwoNN

RULES: dict[str, Callable[[], Callback]] = {
    "FedAvg": rules.FedAvg,
    "FedProx": lambda: rules.FedProx(0.1),
    "Scaffold": rules.Scaffold,
    "Scaffold, option I": lambda: rules.Scaffold("I"),
    "FedDyn": rules.FedDyn,
    "FedDecorr": rules.FedDecorr,
    "MOON": rules.MOON,
    "FedSAM": rules.FedSAM,
    "FedSMOO": rules.FedSMOO,
    "FedGAM, paper": lambda: rules.FedGAM("paper"),
    "FedGAM, released": rules.FedGAM,
    "FedGAMCV, released": rules.FedGAMCV,
}


class Clients(FederatedDataModule):
    """Ten clients with random 28×28 images of 10 classes."""

    num_clients = 10

    def __init__(self) -> None:
        super().__init__(batch_size=64, clients_per_batch=10)
        make = torch.Generator().manual_seed(0)
        images = torch.randn(10, 512, 1, 28, 28, generator=make)
        labels = torch.randint(10, (10, 512), generator=make)
        self.clients = [TensorDataset(*client) for client in zip(images, labels, strict=True)]

    def client_dataset(self, client: int) -> Dataset[Any]:
        return self.clients[client]


class Clock(Callback):
    """Times each round."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_epoch_start(self, *_: Any) -> None:
        self.starts.append(time.perf_counter())


def seconds(rule: Callback) -> float:
    """Median seconds of the third to sixth round; every client has taken part before."""
    clock = Clock()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=7, accelerator="cpu", enable_model_summary=False, callbacks=[rule, clock], **quiet)  # type: ignore[arg-type]
    trainer.fit(FederatedOrchestrator(ImageClassifier(TwoNN())), datamodule=Clients())
    return median(later - sooner for sooner, later in pairwise(clock.starts[2:]))


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command line does
    times: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 7):
        for name, make in RULES.items():
            times[name].append(seconds(make()))
    print(f"FedAvg takes {1000 * median(times['FedAvg']):.0f} ms a round\n| rule | ÷ FedAvg |\n|---|---|")
    for name, taken in times.items():
        ratios = [one / other for one, other in zip(taken, times["FedAvg"], strict=True)]
        print(f"| {name} | {median(ratios):.2f} |")
