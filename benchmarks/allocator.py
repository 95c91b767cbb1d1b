"""Measure what keeping freed memory saves.

Two CNNs and the 2NN train on 4 clients of 256 random images, batch 64, one local epoch, seven rounds per run, one
thread, each run in a process of its own: with glibc's usual allocator, and with ``keep_freed_memory``. Runs are
interleaved. The table shows the median round of each, and the median ratio.

    python benchmarks/allocator.py [repetitions]
"""

import logging
import multiprocessing
import sys
import time
import warnings
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator, models
from fl_lightning.engine.allocator import keep_freed_memory

SHAPES = {"SimpleCNN": (3, 32, 32), "TwoLayerCNN": (3, 32, 32), "TwoNN": (1, 28, 28)}


class Images(FederatedDataModule):
    """Four clients with random images of 10 classes."""

    num_clients = 4

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(batch_size=64, clients_per_batch=4)
        make = torch.Generator().manual_seed(0)
        images, labels = torch.randn(4, 256, *shape, generator=make), torch.randint(10, (4, 256), generator=make)
        self.clients = [TensorDataset(*client) for client in zip(images, labels, strict=True)]

    def client_dataset(self, client: int) -> Dataset[Any]:
        return self.clients[client]


class Clock(Callback):
    """Times each round."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_epoch_start(self, *_: Any) -> None:
        self.starts.append(time.perf_counter())


def seconds(case: tuple[str, bool]) -> float:
    """Median seconds of the rounds after the first two of a run; ``case`` is a network and whether memory is kept."""
    name, kept = case
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if kept:
        keep_freed_memory()
    clock, quiet = Clock(), {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=7, accelerator="cpu", enable_model_summary=False, callbacks=[clock], **quiet)  # type: ignore[arg-type]
    trainer.fit(FederatedOrchestrator(models.ImageClassifier(getattr(models, name)())), datamodule=Images(SHAPES[name]))
    return median([later - sooner for sooner, later in zip(clock.starts, clock.starts[1:], strict=False)][1:])


if __name__ == "__main__":
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'network':<14}{'usual':>12}{'kept':>12}{'ratio':>8}")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in SHAPES:
            pairs = [pool.map(seconds, [(name, False), (name, True)], chunksize=1) for _ in range(repetitions)]
            usual, kept = (median(each) for each in zip(*pairs, strict=True))
            ratio = median(second / first for first, second in pairs)
            print(f"{name:<14}{1e3 * usual:>9.1f} ms{1e3 * kept:>9.1f} ms{ratio:>8.2f}", flush=True)
