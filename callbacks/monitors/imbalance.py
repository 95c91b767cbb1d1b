"""ImbalanceMonitor: how much of a client's loss its rare classes have."""

from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import LocalRun, Metric, Monitor
from fl_lightning.callbacks.client.classes import class_counts, logits_and_targets


class ImbalanceMonitor(Monitor):
    """Logs which part of the clients' loss comes from classes that are rare on them (FedMGC slides, Fig. 2).

    A client's class is rare if it has fewer than 1 / C of the client's examples, for C classes. Both measures are means
    over the local steps and, weighted by n_k, over the clients: ``imbalance/loss`` is the rare classes' share of the
    batch's cross-entropy, before the step, and ``imbalance/examples`` their share of its examples. While the first is
    above the second, rare classes have the larger losses. Clients train one by one. The monitor changes nothing.

    Raises:
        ConfigurationError: the data module has no ``class_counts()``, or ``training_step`` does not return a dict with
            "logits" (B, C, …) and "targets" (B, …).
    """

    metrics = (
        Metric(
            "imbalance/loss",
            "Rare classes' share of the loss",
            "Share of the clients' cross-entropy that comes from classes with fewer than 1 / C of a client's examples.",
            percent=True,
            panel="rare classes",
        ),
        Metric(
            "imbalance/examples",
            "Rare classes' share of the examples",
            "Share of the clients' examples in classes with fewer than 1 / C of a client's examples.",
            percent=True,
            panel="rare classes",
        ),
    )

    streams = True

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        counts = class_counts(self, trainer.datamodule)  # type: ignore[attr-defined]  # set outside Trainer.__init__
        self._rare = counts * counts.shape[1] < counts.sum(1, keepdim=True)

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        logits, targets = logits_and_targets(self, run, outputs)
        rare = self._rare[run.client].to(targets.device)[targets].double()
        with torch.no_grad():
            losses = F.cross_entropy(logits, targets, reduction="none").double()
        run.log("imbalance/loss", (losses * rare).sum() / losses.sum().clamp(min=1e-30))
        run.log("imbalance/examples", rare.mean())
        return loss
