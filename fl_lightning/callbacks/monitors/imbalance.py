"""ImbalanceMonitor: the loss of the classes that are frequent on a client, and of those that are rare."""

from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import LocalRun, Metric, Monitor, rules_of
from fl_lightning.callbacks.client.classes import class_counts, logits_and_targets
from fl_lightning.callbacks.client.focal import FocalLoss, weighted


class ImbalanceMonitor(Monitor):
    """Logs the loss of the classes that are frequent on a client, and of those that are rare (FedMGC slides, Fig. 2).

    A client's class is rare if it has fewer than 1 / C of the client's examples, for C classes. All measures are means
    over the local steps, before each step, and, weighted by n_k, over the clients. The loss is the cross-entropy,
    whatever the client trains on:

    - ``imbalance/frequent`` and ``imbalance/rare``: the mean loss of an example of a frequent and of a rare class;
      ``imbalance/frequent_in/<e>`` and ``imbalance/rare_in/<e>``: in the client's e-th local epoch alone, from 1.
    - ``imbalance/loss``: the rare classes' share of the batch's loss; ``imbalance/loss_in/<e>``: in the e-th epoch.
    - ``imbalance/examples``: their share of the examples. While ``imbalance/loss`` is above it, rare classes have the
      larger losses.
    - ``imbalance/focal``: their share of the focal loss, in runs with :class:`FocalLoss`. While it is above
      ``imbalance/loss``, the focal loss gives rare classes more weight than the cross-entropy does.

    Clients train one by one. The monitor changes nothing.

    Raises:
        ConfigurationError: the data module has no ``class_counts()``, or ``training_step`` does not return a dict with
            "logits" (B, C, …) and "targets" (B, …).
    """

    metrics = (
        Metric(
            "imbalance/frequent",
            "Loss of frequent classes",
            "Mean cross-entropy of the clients' examples in classes with at least 1 / C of a client's examples.",
            panel="cross-entropy of classes",
        ),
        Metric(
            "imbalance/rare",
            "Loss of rare classes",
            "Mean cross-entropy of the clients' examples in classes with fewer than 1 / C of a client's examples.",
            panel="cross-entropy of classes",
        ),
        Metric(
            "imbalance/frequent_in/<e>",
            "loss of frequent classes in a local epoch",
            formula="`imbalance/frequent` in each client's e-th local epoch, from 1.",
            panel="loss of frequent classes by local epoch",
        ),
        Metric(
            "imbalance/rare_in/<e>",
            "loss of rare classes in a local epoch",
            formula="`imbalance/rare` in each client's e-th local epoch, from 1.",
            panel="loss of rare classes by local epoch",
        ),
        Metric(
            "imbalance/loss",
            "Rare classes' share of the loss",
            "Share of the clients' cross-entropy that comes from classes with fewer than 1 / C of a client's examples.",
            percent=True,
            panel="rare classes",
        ),
        Metric(
            "imbalance/loss_in/<e>",
            "rare classes' share of the loss in a local epoch",
            formula="`imbalance/loss` in each client's e-th local epoch, from 1.",
            percent=True,
            panel="rare classes by local epoch",
        ),
        Metric(
            "imbalance/focal",
            "Rare classes' share of the focal loss",
            "Share of the clients' focal loss that comes from classes with fewer than 1 / C of a client's examples.",
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
        self._focal = next((rule for rule in rules_of(trainer) if isinstance(rule, FocalLoss)), None)

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        logits, targets = logits_and_targets(self, run, outputs)
        rare = self._rare[run.client].to(targets.device)[targets]
        with torch.no_grad():
            losses = F.cross_entropy(logits, targets, reduction="none").double()
        epoch = run.epoch + 1
        for name, among in (("frequent", losses[~rare]), ("rare", losses[rare])):
            if len(among):
                run.log(f"imbalance/{name}", among.mean(), batch_size=len(among))
                run.log(f"imbalance/{name}_in/{epoch}", among.mean(), batch_size=len(among))
        share = _share(losses, rare)
        run.log("imbalance/loss", share)
        run.log(f"imbalance/loss_in/{epoch}", share)
        if self._focal:
            run.log("imbalance/focal", _share(weighted(losses, self._focal.gamma, self._focal.beta), rare))
        run.log("imbalance/examples", rare.double().mean())
        return loss


def _share(losses: Tensor, rare: Tensor) -> Tensor:
    """Return the share of the losses that rare examples have."""
    return losses[rare].sum() / losses.sum().clamp(min=1e-30)
