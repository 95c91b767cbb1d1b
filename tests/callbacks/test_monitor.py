"""ConflictMonitor's measures of g₁ = (2, 0), g₂ = (-1, 1), g₃ = (-1, -2), by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from toy import UPDATES, GivenData, Linear, Quadratic, ToyData, trainer

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import ConflictMonitor, FedNova, GradientHarmonization

BEFORE = {
    "conflict/ratio": 1.0,
    "conflict/min_cosine": -(0.5**0.5),
    "conflict/mean_cosine": -(0.5**0.5 + 0.2**0.5 + 0.1**0.5) / 3,
}
AFTER = {
    "conflict/ratio_after": 2 / 3,
    "conflict/min_cosine_after": -1.0,
    "conflict/mean_cosine_after": -1 / 3,
}


def conflict(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if name.startswith("conflict/")}


@pytest.mark.parametrize("monitor_first", [False, True])
def test_before_and_after_harmonization(monitor_first: bool, tmp_path: Path) -> None:
    """Products -2, -2, -1; norms 2, √2, √5: cosines -1/√2, -1/√5, -1/√10; three pairs of three in conflict.

    Harmonised in ascending order (0.4, -0.2), (-0.4, 0.2), (-1, -1): products -0.2, -0.2, 0.2; norms √0.2, √0.2, √2:
    cosines -1, -1/√10, 1/√10; two pairs of three. The place in the list of callbacks changes nothing.
    """
    rules = [GradientHarmonization(order="ascending"), ConflictMonitor()]
    run = trainer(*(rules[::-1] if monitor_first else rules), logger=CSVLogger(tmp_path), log_every_n_steps=1)
    data = GivenData(-torch.tensor(UPDATES, dtype=torch.float64), samples=[1, 1, 2])
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    assert conflict(run.callback_metrics) == pytest.approx(BEFORE | AFTER, abs=1e-6)
    assert conflict(run.logged_metrics) == pytest.approx(BEFORE | AFTER, abs=1e-6)


def test_without_a_rule_nothing_changes_after() -> None:
    run = trainer(ConflictMonitor())
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=GivenData(-torch.tensor(UPDATES, dtype=torch.float64)))
    assert conflict(run.callback_metrics) == pytest.approx(
        BEFORE | {f"{name}_after": value for name, value in BEFORE.items()}, abs=1e-6
    )


@pytest.mark.parametrize("rules", [[], [FedNova(), GradientHarmonization()]], ids=["plain", "rules"])
def test_does_not_change_the_run(rules: list[Any]) -> None:
    models = []
    for watchers in ([], [ConflictMonitor()]):
        orchestrator = FederatedOrchestrator(Quadratic(momentum=0.9))
        trainer(*watchers, *rules, rounds=5).fit(orchestrator, datamodule=ToyData())
        models.append(orchestrator.params)
    assert torch.equal(*models)


def test_one_client_logs_nothing() -> None:
    run = trainer(ConflictMonitor())
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=GivenData(torch.ones(1, 2, dtype=torch.float64)))
    assert conflict(run.callback_metrics) == {}
