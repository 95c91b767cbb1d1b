"""Measure the cost of monitors relative to rounds without monitors.

Clients hold random images of MNIST's shape and train one local epoch in batches of 32 on one thread; metrics.csv and
last.ckpt are written as on the command line. Within a run the rounds take turns: first without monitors, then with each
choice of monitors. A round is timed from its start to the start of the next round, and its time divided by the time of
the round without monitors in the same turn. The table shows medians over the turns, of processor time, which other
programs disturb little, and of wall time.

    python -m benchmarks.measures [turns]
"""

import logging
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedCallback, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import ClientMonitor, CoherenceMonitor, ConflictMonitor
from fl_lightning.models import FedLAWLeNet, ImageClassifier, TwoNN
from fl_lightning.runs.folder.checkpoints import LastCheckpoint
from fl_lightning.runs.folder.run_folder import RunFolder

# Network, number of clients, clients per round, number of images.
CASES: dict[str, tuple[nn.Module, int, int, int]] = {
    "2NN, 20 clients": (TwoNN(), 20, 20, 60000),
    "2NN, 10 of 100 clients": (TwoNN(), 100, 10, 60000),
    "2NN, 100 clients": (TwoNN(), 100, 100, 60000),
    "LeNet, 20 clients": (FedLAWLeNet(), 20, 20, 6000),
}


class Clients(FederatedDataModule):
    """Clients with equal numbers of random 28×28 images of 10 classes."""

    def __init__(self, num_clients: int, cohort: int, images: int) -> None:
        super().__init__(batch_size=32, participation=cohort)
        self.num_clients = num_clients
        make = torch.Generator().manual_seed(0)
        inputs, labels = torch.randn(images, 1, 28, 28, generator=make), torch.randint(10, (images,), generator=make)
        parts = zip(inputs.chunk(num_clients), labels.chunk(num_clients), strict=True)
        self.clients = [TensorDataset(*part) for part in parts]
        self.counts = torch.stack([part.bincount(minlength=10) for part in labels.chunk(num_clients)])

    def client_dataset(self, client: int) -> Dataset[Any]:
        return self.clients[client]

    def class_counts(self) -> Tensor:
        return self.counts


class Layers(ConflictMonitor):
    """ConflictMonitor with layers, as a class of its own: a Trainer takes no two callbacks of the same class."""

    def __init__(self) -> None:
        super().__init__(layers=True)


class Turns(Callback):
    """Sets the monitors of each round, and notes the time at the start of each round.

    Args:
        ways: lists of monitors; the rounds use one list after the other, then start again with the first.
    """

    def __init__(self, ways: list[list[FederatedCallback]]) -> None:
        self.ways, self.starts = ways, list[tuple[float, float]]()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set outside Trainer.__init__
        others = [callback for callback in callbacks if not isinstance(callback, FederatedCallback)]
        trainer.callbacks = [*self.ways[len(self.starts) % len(self.ways)], *others]  # type: ignore[attr-defined]  # as above
        pl_module.on_fit_start()  # looks up the clients' hooks
        self.starts.append((time.process_time(), time.perf_counter()))

    def rounds(self, clock: int) -> list[list[float]]:
        """Seconds of the rounds, one list per turn but the first: processor time (clock 0) or wall time (clock 1)."""
        starts = [start[clock] for start in self.starts]
        taken = [end - start for start, end in pairwise(starts)]
        size = len(self.ways)
        return [taken[i : i + size] for i in range(size, len(taken) - size + 1, size)]


def run(network: nn.Module, data: FederatedDataModule, turns: int) -> Turns:
    every: list[FederatedCallback] = [ConflictMonitor(), CoherenceMonitor(), ClientMonitor()]
    layers = Layers()
    clock = Turns([[], every[:1], [layers], every])
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=len(clock.ways) * (turns + 1) + 1,
            logger=RunFolder(folder),
            callbacks=[*every, layers, LastCheckpoint(), clock],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(FederatedOrchestrator(ImageClassifier(network)), datamodule=data)
    return clock


def main(turns: int) -> None:
    print("| | a round | ConflictMonitor | with layers | all three |\n|---|---|---|---|---|")
    for case, (network, *sizes) in CASES.items():
        clock = run(network, Clients(*sizes), turns)
        processor, wall = clock.rounds(0), clock.rounds(1)
        cells = [f"{1000 * median(turn[0] for turn in processor):.0f} ms"]
        for way in range(1, len(clock.ways)):
            ratios = [median(turn[way] / turn[0] for turn in taken) for taken in (processor, wall)]
            cells.append(f"{ratios[0]:.3f} (wall {ratios[1]:.3f})")
        print(f"| {case} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
