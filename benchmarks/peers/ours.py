"""Train the case with fl-lightning: ``python benchmarks/peers/ours.py ROUNDS [CLIENTS_AT_ONCE [compiled]]``."""

import logging
import sys
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from case import BATCH, CLASSES, CLIENTS, INPUTS, RATE, Stopwatch, clients, rounds
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator


class Module(LightningModule):
    """Logistic regression, from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, CLASSES)
        for parameter in self.layer.parameters():
            nn.init.zeros_(parameter)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


class Data(FederatedDataModule):
    """The case's clients."""

    num_clients = CLIENTS

    def __init__(self) -> None:
        super().__init__(batch_size=BATCH)
        pairs = zip(*map(torch.from_numpy, clients()), strict=True)
        self.datasets = [TensorDataset(*pair) for pair in pairs]

    def client_dataset(self, client: int) -> Dataset[Any]:
        return self.datasets[client]


class Stamp(Callback):
    """Notes the end of each round."""

    def __init__(self) -> None:
        self.watch = Stopwatch()

    def on_train_start(self, *_: Any) -> None:
        self.watch.stamp()

    def on_train_epoch_end(self, *_: Any) -> None:
        self.watch.stamp()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    module, stamp = Module(), Stamp()
    trainer = Trainer(
        max_epochs=rounds(),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[stamp],
    )
    at_once = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    compiled = "compiled" in sys.argv
    trainer.fit(FederatedOrchestrator(module, clients_at_once=at_once, compile_clients=compiled), datamodule=Data())
    stamp.watch.report(module.layer.weight.detach(), module.layer.bias.detach())
