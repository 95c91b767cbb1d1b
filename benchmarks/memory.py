"""Measure the memory and the seconds that the updates of a large cohort take.

A model of one vector trains one step on each client of some rounds. Printed are the seconds of local training and of
the server's part of the last round, and the most memory that the process has held since the model and the data were
made: its own, and pages of the file of the updates, which the system takes back when other programs need memory.

    python -m benchmarks.memory --clients K --parameters P --rule FedAvg --devices 1 --cohort-memory 1GiB

More options: ``--rounds``, ``--folder`` of the file. On several devices, the figures are those of the first process.
"""

import argparse
import time
from threading import Event, Thread
from typing import Any

import psutil
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn

from benchmarks.common import RandomClients, bare_trainer, quiet
from fl_lightning import FederatedCallback, FederatedOrchestrator
from fl_lightning import callbacks as rules


class Vector(LightningModule):
    """A model of one vector, whose gradient depends on the client's first example."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(size))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return (self.vector - batch[0].flatten()[0]).square().sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Ends(FederatedCallback):
    """Notes when the last client of each round ends, and when the round does."""

    streams = True

    def __init__(self) -> None:
        self.started, self.trained, self.ended = [0.0], [0.0], [0.0]

    def on_train_epoch_start(self, *_: Any) -> None:
        self.started.append(time.perf_counter())
        self.trained.append(0.0)

    def on_client_end(self, *_: Any) -> None:
        self.trained[-1] = time.perf_counter()

    def on_round_end(self, *_: Any) -> None:
        self.ended.append(time.perf_counter())


class Watch(Thread):
    """Remembers the largest memory of this process, of its own and of files, in GiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done, self.own, self.files = Event(), 0.0, 0.0

    def run(self) -> None:
        while not self.done.wait(0.02):
            own, files = held()
            self.own, self.files = max(self.own, own), max(self.files, files)


def held() -> tuple[float, float]:
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / 2**30, memory.shared / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=11_200_000)
    parser.add_argument("--rule", default="FedAvg")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--cohort-memory")
    parser.add_argument("--folder", default="runs/benchmarks")
    asked = parser.parse_args()
    quiet()
    ends, watch = Ends(), Watch()
    data = RandomClients(asked.clients, 1, (1,), batch_size=1)
    module = Vector(asked.parameters)
    own, files = held()
    watch.start()
    several: dict[str, Any] = {"devices": asked.devices, "strategy": "client_parallel"} if asked.devices > 1 else {}
    callbacks = [getattr(rules, asked.rule)(), ends]
    trainer = bare_trainer(asked.rounds, *callbacks, default_root_dir=asked.folder, **several)
    trainer.fit(FederatedOrchestrator(module, cohort_memory=asked.cohort_memory), datamodule=data)
    watch.done.set()
    local, server = ends.trained[-1] - ends.started[-1], ends.ended[-1] - ends.trained[-1]
    size = asked.clients * asked.parameters * 4 / 2**30
    rank_zero_only(print)(
        f"{asked.rule}, {asked.clients} clients × {asked.parameters:,} parameters ({size:.1f} GiB): "
        f"own memory {watch.own - own:.2f} GiB, pages of files {watch.files - files:.2f} GiB, "
        f"local training {local:.1f} s, server {server:.1f} s"
    )


if __name__ == "__main__":
    main()
