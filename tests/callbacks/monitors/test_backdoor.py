"""BackdoorEvaluation: the share of stamped images that are taken for the target, by hand."""

from typing import Any

import pytest
import torch
from lib.hand_made import Row
from lib.toy import trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import BackdoorEvaluation
from fl_lightning.datamodules import Tensors


class BySquare(LightningModule):
    """Takes an image with a white last pixel for class 1 if its first pixel is below 0.5; any other for class 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return -self.w.sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        found = (images[:, 0, -1, -1] == 1) & (images[:, 0, 0, 0] < 0.5)
        self.log("val/top1", (found.long() == labels).float().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def data(labels: list[int]) -> Tensors:
    images = torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8)
    images[::3, :, 0, 0] = 255
    trained = torch.zeros_like(images), torch.zeros(len(labels), dtype=torch.int64)
    settings: Any = {"num_clients": 1, "batch_size": 4, "num_classes": 3}
    return Tensors(train=trained, test=(images, torch.tensor(labels)), **settings)


def logged(monitor: BackdoorEvaluation, labels: list[int]) -> dict[str, float]:
    row: dict[str, float] = {}
    trainer(monitor, logger=Row(row)).fit(FederatedOrchestrator(BySquare()), datamodule=data(labels))
    return row


def test_the_share_of_other_classes_that_is_taken_for_the_target() -> None:
    """Images 0, 3 and 6 have a bright first pixel. Of the five not of class 1, two do not count as 1."""
    row = logged(BackdoorEvaluation(target=1, size=2), [0, 1, 0, 1, 2, 2, 0])
    assert row["backdoor/top1"] == pytest.approx(3 / 5)
    assert row["val/top1"] == pytest.approx(3 / 7), "the test set itself stays: no square, class 0"


def test_a_test_set_of_one_class_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs test images of other classes than 1, got none"):
        logged(BackdoorEvaluation(target=1), [1, 1, 1])
