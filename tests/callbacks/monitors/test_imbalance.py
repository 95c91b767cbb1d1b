"""ImbalanceMonitor on two clients with given logits, by hand."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lib.hand_made import Row
from lib.toy import trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FedSAM, FocalLoss, ImbalanceMonitor


class Certain(LightningModule):
    """The logits are the inputs plus w, which stays zero: it learns at rate 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        logits = batch[0] + self.w
        return {"loss": F.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class OnlyLoss(Certain):
    """Returns the loss alone."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx)["loss"]


class Skewed(FederatedDataModule):
    """Client 0 has three examples of class 0 and one of class 1, whose loss is ln 4; client 1 has two of each class."""

    num_clients = 2

    def client_dataset(self, client: int) -> Dataset[Any]:
        targets = torch.tensor([0, 0, 0, 1] if client == 0 else [0, 0, 1, 1])
        logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [math.log(3), 0.0]])
        return TensorDataset(logits, targets)

    def class_counts(self) -> Tensor:
        return torch.tensor([[3, 1], [2, 2]])


class Unlabelled(Skewed):
    """Does not tell its classes."""

    class_counts = FederatedDataModule.class_counts


def logged(*rules: Any, module: LightningModule | None = None, data: type[FederatedDataModule] = Skewed) -> Any:
    found: dict[str, float] = {}
    run = trainer(*rules, logger=Row(found))
    run.fit(FederatedOrchestrator(module or Certain(), on_bad_update="raise"), datamodule=data(batch_size=4))
    return {name: value for name, value in found.items() if name.startswith("imbalance/")}


@pytest.mark.parametrize("rules", [[], [FocalLoss()], [FedSAM(rho=10.0)]])
def test_share_of_the_rare_class(rules: Any) -> None:
    """On client 0 ln 4 of 3 ln 2 + ln 4, which are 2 of 5 parts, by 1 example of 4; on client 1 no class is rare."""
    expected = {"imbalance/loss": 0.4 / 2, "imbalance/examples": 0.25 / 2}
    assert logged(ImbalanceMonitor(), *rules) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"data": Unlabelled}, r"Unlabelled.class_counts\(\) returns None: define it, or remove ImbalanceMonitor"),
        ({"module": OnlyLoss()}, "needs OnlyLoss.training_step to return a dict with .*, got Tensor"),
    ],
)
def test_needs_classes_and_logits(settings: Any, line: str) -> None:
    with pytest.raises(ConfigurationError, match=line):
        logged(ImbalanceMonitor(), **settings)
