"""Toy problem T: w ∈ R², w⁰ = 0, η = 0.1, ∇f_i(w) = A_i ∘ (w - B_i), full participation, float64.

Client 0: A = (1, 2), B = (1, -1), n = 1, τ = 2 steps. Client 1: A = (3, 0.5), B = (-2, 2), n = 3, τ = 3 steps.
Plain SGD takes them to (0.19, -0.36) and (-1.314, 0.28525).
"""

from typing import Any

import lightning
import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator

ETA = 0.1
A = torch.tensor([[1.0, 2.0], [3.0, 0.5]], dtype=torch.float64)
B = torch.tensor([[1.0, -1.0], [-2.0, 2.0]], dtype=torch.float64)
SAMPLES, STEPS = [1, 3], [2, 3]


class Quadratic(LightningModule):
    """f_i(w) = Σ A_i (w - B_i)² / 2; a batch is one row (A_i, B_i)."""

    def __init__(self, momentum: float = 0.0, size: int = 2) -> None:
        super().__init__()
        self.momentum = momentum
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        a, b = batch
        return (a * (self.w - b) ** 2 / 2).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=ETA, momentum=self.momentum)


class ToyData(FederatedDataModule):
    """Each step sees the client's whole objective: τ copies of its row, one a batch."""

    num_clients = 2

    def __init__(self, **settings: Any) -> None:
        super().__init__(batch_size=1, **settings)

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(A[client].expand(STEPS[client], 2), B[client].expand(STEPS[client], 2))

    def client_num_samples(self, client: int) -> int:
        return SAMPLES[client]


def trainer(*callbacks: Callback, rounds: int = 1, **settings: Any) -> lightning.Trainer:
    """A Trainer that leaves nothing behind, unless told otherwise."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    quiet |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "max_epochs": rounds}
    return lightning.Trainer(**{**quiet, **settings}, callbacks=list(callbacks))


def train(*callbacks: Callback, rounds: int = 1, momentum: float = 0.0, **settings: Any) -> Tensor:
    """The global model after some rounds of T, (2,)."""
    orchestrator = FederatedOrchestrator(Quadratic(momentum), **settings)
    trainer(*callbacks, rounds=rounds).fit(orchestrator, datamodule=ToyData())
    return orchestrator.client.w.detach()  # type: ignore[union-attr, operator, return-value]
