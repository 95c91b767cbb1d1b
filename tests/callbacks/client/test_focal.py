"""Focal loss of logits (2, 0, -1) and (0, 1, 0) for the classes 0 and 2, by hand, and in a run."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lib.toy import Capture, Quadratic, ToyData, close, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FocalLoss
from fl_lightning.callbacks.client.focal import focal_loss

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
TARGETS = torch.tensor([0, 2])


class Table(LightningModule):
    """The logits of example i are row i of its parameter."""

    def __init__(self, automatic: bool = True) -> None:
        super().__init__()
        self.table = nn.Parameter(LOGITS.clone())
        self.automatic_optimization = automatic

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        rows, targets = batch
        logits = self.table[rows]
        loss = F.cross_entropy(logits, targets)
        if not self.automatic_optimization:
            self.manual_backward(loss)
            self.optimizers().step()  # type: ignore[union-attr]
        return {"loss": loss, "logits": logits, "targets": targets}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TableData(FederatedDataModule):
    num_clients = 1

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.arange(2), TARGETS)


@pytest.mark.parametrize(
    ("gamma", "beta", "expected"),
    [(0.0, 1.0, 0.8606453667), (2.0, 1.0, 0.4838237226), (2.0, 0.25, 0.1209559306)],
)
def test_two_examples(gamma: float, beta: float, expected: float) -> None:
    """p_t = e²/(e² + 1 + e⁻¹) = 0.84379 and 1/(2 + e) = 0.21194; -log p_t = 0.16985 and 1.55144, mean 0.86065.

    γ = 2: (0.15621² · 0.16985 + 0.78806² · 1.55144)/2 = 0.48382; β = 0.25 of it: 0.12096.
    """
    assert float(focal_loss(LOGITS, TARGETS, gamma, beta)) == pytest.approx(expected, abs=1e-9)
    capture = Capture()
    trainer(FocalLoss(gamma, beta), capture).fit(FederatedOrchestrator(Table()), datamodule=TableData())
    assert float(capture.cohort.losses[0]) == pytest.approx(expected, abs=1e-9)


def test_its_gradient_trains_the_client() -> None:
    """∂/∂z_j of -(1 - p)² log p is (2 (1 - p) p log p - (1 - p)²)(1[j = t] - p_j), with p = p_t."""
    capture = Capture()
    trainer(FocalLoss(2.0), capture).fit(FederatedOrchestrator(Table()), datamodule=TableData())
    p = LOGITS.softmax(1)
    true = p[[0, 1], TARGETS][:, None]
    gradient = (2 * (1 - true) * true * true.log() - (1 - true) ** 2) * (F.one_hot(TARGETS, 3) - p) / 2
    assert close(capture.cohort.deltas[0], -0.1 * gradient.flatten())


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_gradient_is_finite_where_the_true_class_is_certain(gamma: float) -> None:
    """p_t = 1 in floating point: loss and gradient are zero in the limit, for every γ."""
    logits = torch.tensor([[100.0, 0.0, -1.0]], requires_grad=True)
    focal_loss(logits, torch.tensor([0]), gamma, 1.0).backward()
    assert close(logits.grad, torch.zeros(1, 3), 1e-30)  # type: ignore[arg-type]


def test_needs_logits_and_targets() -> None:
    with pytest.raises(ConfigurationError, match=r"FocalLoss needs Quadratic\.training_step to return a dict with"):
        trainer(FocalLoss()).fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())


def test_is_not_ignored_under_manual_optimization() -> None:
    """The module then calls backward itself, before the callback could change the loss: refused, not passed over."""
    with pytest.raises(ConfigurationError, match="FocalLoss"):
        trainer(FocalLoss()).fit(FederatedOrchestrator(Table(automatic=False)), datamodule=TableData())
