"""Lightning's own callbacks: those that would mean something else are refused by name; evaluations need their steps."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from lib.toy import Quadratic, ToyData, trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    DeviceStatsMonitor,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    ThroughputMonitor,
)
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from torch import Tensor
from torch.utils.data import DataLoader

from fl_lightning import ConfigurationError, FederatedOrchestrator

REFUSED: list[Callback] = [
    BatchSizeFinder(),
    LearningRateFinder(),
    StochasticWeightAveraging(swa_lrs=0.1),
    GradientAccumulationScheduler({0: 2}),
    ThroughputMonitor(batch_size_fn=len),
    SpikeDetection(),
    ModelPruning("l1_unstructured"),
    ModelCheckpoint(train_time_interval=timedelta(seconds=1)),
]


@pytest.mark.parametrize("callback", REFUSED, ids=lambda each: type(each).__name__)
def test_callbacks_that_mean_something_else_are_refused(callback: Callback) -> None:
    """Whether the client module brings them or the Trainer gets them."""

    class Bringing(Quadratic):
        def configure_callbacks(self) -> list[Callback]:
            return [callback]

    saves = {"enable_checkpointing": isinstance(callback, ModelCheckpoint)}
    for module, run in ((Bringing(), trainer(**saves)), (Quadratic(), trainer(callback, **saves))):
        with pytest.raises(ConfigurationError, match=f"^{type(callback).__name__} .*: (use|set|read) "):
            run.fit(FederatedOrchestrator(module), datamodule=ToyData())


def test_what_the_client_module_has_is_named() -> None:
    """In a callback that takes the orchestrator for the module."""
    orchestrator = FederatedOrchestrator(Quadratic())
    with pytest.raises(AttributeError, match=r"has no attribute 'w', but its client module has: pl_module.client.w"):
        orchestrator.w  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        orchestrator.nothing  # noqa: B018


@pytest.mark.parametrize("method", ["scale_batch_size", "lr_find"])
def test_tuners_are_refused(method: str) -> None:
    with pytest.raises(ConfigurationError, match="after a Tuner, with a new Trainer"):
        getattr(Tuner(trainer()), method)(FederatedOrchestrator(Quadratic()), datamodule=ToyData())


def test_device_statistics_have_the_round_as_their_step(tmp_path: Path) -> None:
    """Two clients a round, before and after each."""
    logger = CSVLogger(tmp_path)
    orchestrator = FederatedOrchestrator(Quadratic())
    run = trainer(DeviceStatsMonitor(cpu_stats=True), logger=logger, rounds=2, log_every_n_steps=1)
    run.fit(orchestrator, datamodule=ToyData())
    table = pd.read_csv(tmp_path / "lightning_logs/version_0/metrics.csv")
    measured = table.filter(like="cpu_percent").notna().any(axis=1)
    assert list(table["step"][measured]) == [1, 1, 1, 1, 2, 2, 2, 2]


class Evaluated(ToyData):
    def val_dataloader(self) -> Any:
        return DataLoader(torch.zeros(1, 2, dtype=torch.float64))  # type: ignore[arg-type]  # a tensor is a dataset

    test_dataloader = predict_dataloader = val_dataloader


@pytest.mark.parametrize("method", ["validate", "test", "predict"])
def test_evaluations_need_their_step(method: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"^{method} runs Quadratic.{method[:5]}\w*_step, which Quadratic does"
    ):
        getattr(trainer(), method)(FederatedOrchestrator(Quadratic()), datamodule=Evaluated())


def test_a_fit_without_validation_step_skips_validation_and_leaves_the_trainer_alone() -> None:
    run = trainer()
    run.fit(orchestrator := FederatedOrchestrator(Quadratic()), datamodule=Evaluated())
    assert (orchestrator.rounds_done, run.limit_val_batches) == (1, 1.0)  # type: ignore[attr-defined]  # set outside __init__


def test_forward_is_enough_to_predict() -> None:
    class Forward(Quadratic):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.w

    (found,) = trainer().predict(FederatedOrchestrator(Forward()), datamodule=Evaluated()) or []
    assert found.tolist() == [[0, 0]]
