"""TrainingEvaluation by hand on three clients, and that it changes nothing."""

from typing import Any

import pytest
import torch
from lib.toy import Capture, Linear, Notes, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import TrainingEvaluation
from fl_lightning.datamodules import Tensors
from fl_lightning.datamodules.changes.augmentation import Augmentation
from fl_lightning.models import ImageClassifier
from fl_lightning.runs.catalogue import metric_and_factor

SIZES = [5, 0, 3]


class Judged(LightningModule):
    """A point x > w is of class 1; w moves by 1 in a local step, whatever the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.modes: list[bool] = Notes()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return -self.w.sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        points, labels = batch
        self.modes.append(self.training)
        self.log("val/right", ((points > self.w).long() == labels).double().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Numbers(FederatedDataModule):
    """Client 0 has the points 0.5, 1.5, …, 4.5, client 2 has 0.5, 1.5, 2.5, all of class 1; client 1 has none."""

    num_clients = 3

    def client_dataset(self, client: int) -> Dataset[Any]:
        count = SIZES[client]
        return TensorDataset(torch.arange(count, dtype=torch.float64) + 0.5, torch.ones(count).long())


def logged(rounds: int, every: int = 1) -> tuple[list[float | None], Judged]:
    """The share of right points after each round."""
    found: list[float | None] = []

    class Reads(Capture):
        def on_train_epoch_end(self, trainer: Any, pl_module: LightningModule) -> None:
            value = trainer.logged_metrics.get("global_train/right")
            found.append(None if value is None else float(value))

    orchestrator = FederatedOrchestrator(Judged(), local_steps=1)
    callbacks = (TrainingEvaluation(every), Reads())
    trainer(*callbacks, rounds=rounds).fit(orchestrator, datamodule=Numbers(batch_size=2))
    return found, orchestrator.client  # type: ignore[return-value]


def test_every_training_example_counts_once_under_the_new_global_model() -> None:
    """After the rounds, w is 1, 2, 3: 4 + 2, 3 + 1 and 2 + 0 of the 5 + 3 points are above w.

    In batches of two: shares of batches of 2, 2, 1, 2 and 1 points are weighted by their points.
    """
    found, module = logged(rounds=3)
    assert found == pytest.approx([6 / 8, 4 / 8, 2 / 8], abs=1e-7)
    assert module.modes == [False] * 5 * 3


def test_evaluates_every_second_round_and_the_last() -> None:
    found, module = logged(rounds=3, every=2)
    assert found[0] is None
    assert found[1:] == pytest.approx([4 / 8, 2 / 8], abs=1e-7)
    assert len(module.modes) == 5 * 2


class Blackens(Augmentation):
    """Makes every image black, with which no network of weights sees anything."""

    def __call__(self, images: Tensor) -> Tensor:
        return torch.zeros_like(images)


class Peeks(nn.Module):
    """Logits of an image of 1x1 pixels: its brightness, and a half; one weight that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        bright = images.flatten(1)[:, :1]
        return torch.cat([bright + 0 * self.weight, 0.5 + 0 * bright], 1)


def test_training_images_are_not_augmented() -> None:
    """Of class 0 are brightnesses above a half, three of four here; black images would all be of class 1."""
    images = torch.tensor([255, 200, 10, 180], dtype=torch.uint8).reshape(4, 1, 1, 1)
    labels = torch.zeros(4).long()
    pair = (images, labels)
    data = Tensors(train=pair, test=pair, num_classes=2, num_clients=2, augment=[Blackens()])
    fit = trainer(TrainingEvaluation())
    fit.fit(FederatedOrchestrator(ImageClassifier(Peeks(), num_classes=2)), datamodule=data)
    assert float(fit.callback_metrics["global_train/top1"]) == 0.75
    assert metric_and_factor("train_top1") == ("global_train/top1", 100.0)


class Silent(Judged):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: Linear(1), "evaluates by the module's validation_step, but Linear has none"),
        (Silent, "Silent.validation_step logs nothing, so TrainingEvaluation has nothing to show"),
    ],
)
def test_refuses_a_module_that_cannot_be_evaluated(module: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trainer(TrainingEvaluation()).fit(FederatedOrchestrator(module()), datamodule=Numbers(batch_size=2))
