"""Mixed precision is for the clients' forward passes; the server's arithmetic stays what the parameters are."""

import platform
from typing import Any

import pytest
import torch
from lib.toy import Notes, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fl_lightning import Cohort, FederatedCallback, FederatedDataModule, FederatedOrchestrator


class Linear(LightningModule):
    """Remembers in which dtype its layer computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.computed_in: list[torch.dtype] = Notes()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        output = self.layer(batch[0])
        self.computed_in.append(output.dtype)
        return output.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(FederatedDataModule):
    num_clients = 3

    def client_dataset(self, client: int) -> TensorDataset:
        return TensorDataset(torch.ones(4, 3) * (client + 1))


class Watch(FederatedCallback):
    """Remembers the dtypes on the server."""

    def update(self, orchestrator: Any, cohort: Cohort, update: Tensor) -> Tensor:
        self.dtypes = {update.dtype, cohort.deltas.dtype, orchestrator.params.dtype, (cohort.deltas @ update).dtype}
        self.gram = cohort.gram.dtype
        return update


@pytest.mark.parametrize(
    ("precision", "forward", "server"),
    [
        ("32-true", torch.float32, torch.float32),
        ("bf16-mixed", torch.bfloat16, torch.float32),
        ("64-true", torch.float64, torch.float64),
    ],
)
def test_server_precision(precision: str, forward: torch.dtype, server: torch.dtype) -> None:
    watch, client = Watch(), Linear()
    trainer(watch, precision=precision).fit(FederatedOrchestrator(client), datamodule=Data())
    assert set(client.computed_in) == {forward}
    assert watch.dtypes == {server}
    assert watch.gram == torch.float64


@pytest.mark.parametrize(
    ("precision", "matrix_units", "warns"),
    [("bf16-mixed", False, True), ("bf16-mixed", True, False), ("32-true", False, False)],
)
def test_slow_half_precision_is_said(
    precision: str, matrix_units: bool, warns: bool, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """On a processor without matrix units for bfloat16, bf16-mixed is slower than float32."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": matrix_units})
    trainer(precision=precision).fit(FederatedOrchestrator(Linear()), datamodule=Data())
    assert sum("slower than 32-true" in str(warning.message) for warning in recwarn) == warns


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="matrix units of x86 processors")
def test_torch_names_the_matrix_units() -> None:
    assert type(torch.cpu.get_capabilities()["amx_bf16"]) is bool
