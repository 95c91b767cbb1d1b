"""Modules that log: numbers of all kinds, and torchmetrics."""

from typing import Any

import torch
from lib.toy import Net
from torch import Tensor, nn
from torchmetrics import CatMetric, MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassConfusionMatrix,
    MulticlassPrecision,
    MulticlassRecall,
)

from zoo import data


@data.on(sizes=data.UNEVEN)
class Logs(Net):
    """Means, sums and largest values, by step and by epoch, of batches of different sizes."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss, size = self.loss(batch), len(batch[0])
        self.log("mean", loss, on_step=False, on_epoch=True, batch_size=size)
        self.log("examples", float(size), on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("worst", loss, on_step=False, on_epoch=True, reduce_fx=torch.max)
        self.log("best", loss.detach(), on_step=False, on_epoch=True, reduce_fx="min")
        self.log("both", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log_dict({"one": 1, "two": torch.tensor(2.0)}, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch), on_epoch=True)
        self.log("val/examples", float(len(batch[0])), reduce_fx="sum", sync_dist=True)


class Accuracies(Net):
    """A torchmetrics object for training, which is logged, and one for validation."""

    def build(self) -> None:
        self.metrics = nn.ModuleDict({"train_top1": MulticlassAccuracy(3), "val_top1": MulticlassAccuracy(3)})
        self.total = SumMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.metrics["train_top1"](self.net(batch[0]), batch[1])
        self.log("train/top1", self.metrics["train_top1"], on_step=False, on_epoch=True)
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.metrics["val_top1"](self.net(batch[0]), batch[1])
        self.total.update(len(batch[0]))
        self.log("val/top1", self.metrics["val_top1"])
        self.log("val/total", self.total)


class Collections(Net):
    """A MetricCollection with compute groups, two of whose metrics keep lists of all values, logged by ``log_dict``."""

    def build(self) -> None:
        kinds = MulticlassPrecision, MulticlassRecall, MulticlassAUROC, MulticlassAveragePrecision
        self.scores = MetricCollection([kind(3) for kind in kinds], prefix="train/")
        self.val_scores = self.scores.clone(prefix="val/")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.scores.update(self.net(batch[0]), batch[1])
        self.log_dict(self.scores, on_step=False, on_epoch=True)
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.val_scores.update(self.net(batch[0]), batch[1])

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.val_scores.compute())
        self.val_scores.reset()


class ComputesItself(Net):
    """Computes and resets its metrics in hooks; one has a state that is saved, one a matrix that no log takes."""

    def build(self) -> None:
        self.values, self.mean, self.confusion = CatMetric(), MeanMetric(), MulticlassConfusionMatrix(3)
        self.mean.persistent(True)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        for metric in (self.values, self.mean):
            metric.update(loss.detach())
        self.confusion.update(self.net(batch[0]), batch[1])
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("train/last", self.values.compute().reshape(-1)[-1])
        self.log("train/mean", self.mean.compute())
        self.log("train/right", self.confusion.compute().trace().float())
        for metric in (self.values, self.mean, self.confusion):
            metric.reset()


class SamplesInValidation(Net):
    """Keeps dropout on in validation, by ``on_validation_model_eval``."""

    def between(self) -> list[nn.Module]:
        return [nn.Tanh(), nn.Dropout(0.5)]

    def on_validation_model_eval(self) -> None:
        super().on_validation_model_eval()
        self.net[2].train()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert self.net[2].training
        assert not self.net[0].training


class Feeds(Net):
    """A loss that depends on a metric's state: the mean of all losses so far, which nothing resets."""

    def build(self) -> None:
        self.mean = MeanMetric()

    def loss(self, batch: Any) -> Tensor:
        loss = super().loss(batch)
        self.mean.update(loss.detach())
        return loss / self.mean.compute()
