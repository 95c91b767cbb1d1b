"""ImageClassifier: trains any network to classify images."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from typing_extensions import override

from fl_lightning import ConfigurationError
from fl_lightning.arguments import picklable_defaults
from fl_lightning.errors import check_choice


def check_classes(trainer: Any, num_classes: int) -> None:
    """Refuse data with another number of classes than that of the metrics and the network.

    Raises:
        ConfigurationError: the Trainer's data module has another ``num_classes``.
    """
    classes = getattr(getattr(trainer, "datamodule", None), "num_classes", num_classes)
    if classes != num_classes:
        raise ConfigurationError(
            f"the data has {classes} classes, the model {num_classes}: set model.client.num_classes and the network's "
            f"num_classes to {classes}"
        )


def with_schedule(optimizer: Optimizer, scheduler: LRSchedulerCallable | None, interval: str) -> Any:
    """Return what ``configure_optimizers`` returns for an optimizer and, unless it is None, a schedule."""
    if scheduler is None:
        return optimizer
    return [optimizer], [{"scheduler": scheduler(optimizer), "interval": interval}]


@picklable_defaults
class ImageClassifier(LightningModule):
    """Trains a network with cross-entropy; logs loss, top-1 and top-3 accuracy as ``val/…`` and ``test/…``.

    An example whose loss is nan makes ``val/loss`` nan.

    Args:
        network: module that maps images (B, C, H, W) to logits (B, num_classes).
        num_classes: number of classes of the data.
        optimizer: function that makes a client's optimizer from the parameters.
        scheduler: function that makes a learning rate schedule from the optimizer; the schedule starts anew every
            round.
        scheduler_interval: period of the schedule: a local "epoch", or a "step" of the optimizer.

    Raises:
        ConfigurationError: ``scheduler_interval`` is neither.
    """

    lower_is_better = ("val/loss", "test/loss")
    higher_is_better = ("val/top1", "val/top3", "test/top1", "test/top3")
    shares_evaluation = True  # validation_step asks the network alone, by one self(images): see SharedEvaluation

    def __init__(
        self,
        network: nn.Module,
        num_classes: int = 10,
        optimizer: OptimizerCallable = lambda params: torch.optim.SGD(params, lr=0.01),
        scheduler: LRSchedulerCallable | None = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
    ) -> None:
        super().__init__()
        check_choice("scheduler_interval", scheduler_interval, "epoch", "step")
        self.scheduler_interval = scheduler_interval
        self.network, self.num_classes = network, num_classes
        self.from_elsewhere = [f"network.{name}" for name in getattr(network, "from_elsewhere", ())]
        self.optimizer, self.scheduler = optimizer, scheduler
        self.metrics = nn.ModuleDict({stage: self._metrics(f"{stage}/") for stage in ("val", "test")})

    def _metrics(self, prefix: str) -> MetricCollection:
        def accuracy(k: int) -> MulticlassAccuracy:
            return MulticlassAccuracy(self.num_classes, top_k=min(k, self.num_classes), average="micro")

        # By default, MeanMetric searches every batch for losses that are nan; with a GPU, the CPU would wait.
        loss = MeanMetric(nan_strategy="disable")
        return MetricCollection({"top1": accuracy(1), "top3": accuracy(3), "loss": loss}, prefix=prefix)

    @override
    def setup(self, stage: str) -> None:
        check_classes(self.trainer, self.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, num_classes) of images (B, C, H, W)."""
        logits: Tensor = self.network(images)
        if logits.shape[1:] != (self.num_classes,):
            raise ConfigurationError(
                f"{type(self.network).__name__} gives an output of shape {tuple(logits.shape)}, expected (batch, "
                f"{self.num_classes}): set model.client.num_classes and the network's "
                "num_classes to the data's number of classes"
            )
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return the cross-entropy of a batch as ``loss``, with ``logits`` and ``targets`` for rules that use them."""
        images, targets = batch
        logits = self(images)
        return {"loss": F.cross_entropy(logits, targets), "logits": logits, "targets": targets}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the ``val/…`` metrics."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the ``test/…`` metrics."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return class probabilities (B, num_classes)."""
        images = batch[0] if isinstance(batch, list | tuple) else batch
        return self(images).softmax(1)  # type: ignore[no-any-return]

    def _evaluate(self, batch: Any, stage: str) -> None:
        images, targets = batch
        logits = self(images)
        metrics: Any = self.metrics[stage]
        for name in ("top1", "top3"):
            metrics[name].update(logits, targets)
        metrics["loss"].update(F.cross_entropy(logits, targets, reduction="none"))
        for name, metric in metrics.items():
            self.log(name, metric, prog_bar=name.endswith("top1"), batch_size=len(targets))

    @override
    def configure_optimizers(self) -> Any:
        return with_schedule(self.optimizer(self.parameters()), self.scheduler, self.scheduler_interval)
