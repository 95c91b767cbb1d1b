"""What several benchmarks need: clients with random data, a clock, a Trainer that does nothing else."""

import logging
import time
import warnings
from itertools import pairwise
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.utils.data import Dataset, Subset, TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.engine.devices.strategy import finish_work
from fl_lightning.fit.allocator import keep_freed_memory


class RandomClients(FederatedDataModule):
    """Clients with random inputs of 10 classes, each a part of one dataset in memory, as in the shipped data modules.

    Args:
        num_clients: N.
        samples: each client's number of examples.
        shape: shape of an input.
        settings: arguments of :class:`FederatedDataModule`.
    """

    def __init__(self, num_clients: int, samples: int, shape: tuple[int, ...], **settings: Any) -> None:
        super().__init__(**settings)
        self.num_clients = num_clients
        draw = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(num_clients, samples, *shape, generator=draw)
        self.classes = torch.randint(10, (num_clients, samples), generator=draw)
        self.examples = TensorDataset(self.inputs.flatten(0, 1), self.classes.flatten())
        self.parts = torch.arange(num_clients * samples).view(num_clients, samples)

    def client_dataset(self, client: int) -> Dataset[Any]:
        return Subset(self.examples, self.parts[client])  # type: ignore[arg-type]  # a tensor is a sequence


class Clock(Callback):
    """Times each round, from its start to the next one's, and sees whether clients train at once in the last one."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.at_once = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        finish_work(pl_module.device)
        self.stamps.append(time.perf_counter())

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.on_train_epoch_start(trainer, pl_module)
        self.at_once = pl_module.client_training.at_once

    @property
    def seconds(self) -> list[float]:
        return [later - sooner for sooner, later in pairwise(self.stamps)]


def bare_trainer(rounds: int, *callbacks: Callback, **settings: Any) -> Trainer:
    """Make a Trainer for the CPU without logger, checkpoints, progress bar and summary, unless ``settings`` say so."""
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    given = {**dict.fromkeys(off, False), "accelerator": "cpu", **settings}
    return Trainer(max_epochs=rounds, callbacks=list(callbacks), **given)


def quiet(keep: bool = True) -> None:
    """Use one thread, print nothing but results, and keep freed memory as the command line does, if ``keep``."""
    if keep:
        keep_freed_memory()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
