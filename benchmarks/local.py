"""Local training by hand, beside ours: whole rounds, interleaved, from the same model on the same clients.

Ours is FederatedOrchestrator under the Trainer, aggregation included. A plain PyTorch loop takes a client's batches
from a DataLoader, or, tuned, from tensors that are gathered once per epoch and split. The groups of the table that
compare ours with such a loop are made of these parts.
"""

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import RandomClients, bare_trainer
from fl_lightning import FederatedOrchestrator

LEARNING_RATE = 0.01


class Module(LightningModule):
    """Trains a network with cross-entropy and plain SGD."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)


class Interleave(Callback):
    """Times every round of a fit, and runs and times other ways between the rounds."""

    def __init__(self, others: dict[str, Callable[[], float]]) -> None:
        self.others = others
        self.seconds: dict[str, list[float]] = {way: [] for way in ("ours", *others)}

    def on_train_start(self, *_: Any) -> None:
        self.start = time.perf_counter()

    def on_train_epoch_end(self, *_: Any) -> None:
        self.seconds["ours"].append(time.perf_counter() - self.start)
        for way, run in self.others.items():
            self.seconds[way].append(run())
        self.start = time.perf_counter()


def interleaved(
    orchestrator: FederatedOrchestrator,
    data: RandomClients,
    others: dict[str, Callable[[], float]],
    repeats: int,
    warm_up: int = 2,
) -> dict[str, list[float]]:
    """Train ``warm_up`` + ``repeats`` rounds in every way, and return the seconds of the last ``repeats`` of each."""
    watch = Interleave(others)
    bare_trainer(warm_up + repeats, watch).fit(orchestrator, datamodule=data)
    return {way: times[warm_up:] for way, times in watch.seconds.items()}


def ratio(seconds: dict[str, list[float]], other: str) -> float:
    """Return the median of the ratios of our rounds to another way's."""
    return median(ours / theirs for ours, theirs in zip(seconds["ours"], seconds[other], strict=True))


def by_hand(
    network: nn.Module,
    data: RandomClients,
    batches: Callable[[TensorDataset], Iterable[Any]],
    lr: float = LEARNING_RATE,
    **sgd: float,
) -> Callable[[], float]:
    """Make a plain loop that trains one round, averages the clients' parameters and returns the seconds taken."""

    def round() -> float:
        start = time.perf_counter()
        before = [p.detach().clone() for p in network.parameters()]
        total = [torch.zeros_like(p) for p in before]
        for dataset in map(TensorDataset, data.inputs, data.classes):
            with torch.no_grad():
                for parameter, value in zip(network.parameters(), before, strict=True):
                    parameter.copy_(value)
            optimizer = torch.optim.SGD(network.parameters(), lr=lr, **sgd)
            for inputs, targets in batches(dataset):
                optimizer.zero_grad()
                F.cross_entropy(network(inputs), targets).backward()
                optimizer.step()
            for value, parameter in zip(total, network.parameters(), strict=True):
                value.add_(parameter.detach(), alpha=1 / data.num_clients)
        with torch.no_grad():
            for parameter, value in zip(network.parameters(), total, strict=True):
                parameter.copy_(value)
        return time.perf_counter() - start

    return round


def from_loader(batch_size: int) -> Callable[[TensorDataset], Iterable[Any]]:
    return lambda dataset: DataLoader(dataset, batch_size=batch_size, shuffle=True)


def gathered(batch_size: int) -> Callable[[TensorDataset], Iterable[Any]]:
    def batches(dataset: TensorDataset) -> Iterable[Any]:
        order = torch.randperm(len(dataset))
        inputs, targets = (tensor[order] for tensor in dataset.tensors)
        return zip(inputs.split(batch_size), targets.split(batch_size), strict=True)

    return batches
