"""The server's optimizer and its schedule: a round is a step, and a resumed run goes on by its own settings.

Where not said otherwise, two clients send (1, 0) and (3, -2) every round, whatever the model is: the update is
u = (2, -1), and the model after some rounds is u times the sum of the learning rates, given as that sum.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.command import TINY, fit, rows
from lib.toy import GivenData, Linear, close, trainer
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

Schedule = Callable[[Optimizer], LRScheduler]
U = torch.tensor([2.0, -1.0], dtype=torch.float64)
RUN = Path("runs", "tiny", "version_0")


def halved(optimizer: Optimizer) -> LRScheduler:
    """Factors 1, 1/2, 1/4, …"""
    return ExponentialLR(optimizer, 0.5)


def warm_up(optimizer: Optimizer) -> LRScheduler:
    """Factors 1/4, 1/2, 3/4, 1, 1, …"""
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))


def step(optimizer: Optimizer) -> LRScheduler:
    """Factors 1, 1, 1/10, 1/10, 1/100, …"""
    return StepLR(optimizer, step_size=2, gamma=0.1)


def one_cycle(optimizer: Optimizer) -> LRScheduler:
    """Over four rounds, to the last of its steps; moves the momentum, too."""
    return OneCycleLR(optimizer, max_lr=1.0, total_steps=4)


def chained(optimizer: Optimizer) -> LRScheduler:
    return ChainedScheduler([LinearLR(optimizer, 0.25, total_iters=3), ExponentialLR(optimizer, 0.5)])


def sequential(optimizer: Optimizer) -> LRScheduler:
    """Factors 1/2, 3/4, then 1, 1/2, …: the second schedule starts at the third round."""
    parts: list[LRScheduler] = [LinearLR(optimizer, 0.5, total_iters=2), ExponentialLR(optimizer, 0.5)]
    return SequentialLR(optimizer, parts, milestones=[2])


def rounds_of(
    count: int,
    schedule: Schedule | None = None,
    lr: float = 1.0,
    optimizer: Any = SGD,
    folder: Path | None = None,
    resume: Path | None = None,
    **settings: Any,
) -> torch.Tensor:
    """The global model (2,) after that many rounds from zero; its checkpoint is ``folder/checkpoints/last.ckpt``."""
    orchestrator = FederatedOrchestrator(
        Linear(2), server_optimizer=lambda p: optimizer(p, lr=lr, **settings), server_scheduler=schedule
    )
    saving: dict[str, Any] = {"default_root_dir": folder, "enable_checkpointing": True} if folder else {}
    last = [LastCheckpoint()] if folder else []
    data = GivenData(torch.tensor([[-1.0, 0.0], [-3.0, 2.0]], dtype=torch.float64))
    trainer(*last, rounds=count, **saving).fit(orchestrator, datamodule=data, ckpt_path=resume)
    return orchestrator.params.clone()


def resumed(folder: Path, before: dict[str, Any], after: dict[str, Any], stop: int = 2, end: int = 4) -> torch.Tensor:
    """The model of a run that was stopped after some rounds and goes on with other settings."""
    rounds_of(stop, folder=folder, **before)
    return rounds_of(end, folder=folder, resume=folder / "checkpoints" / "last.ckpt", **after)


def test_adam_by_hand() -> None:
    """Equal gradients: m̂ = -u, v̂ = u² in every round, so that each step is 0.1 in u's direction (ε = 10⁻⁸ aside)."""
    assert close(rounds_of(3, lr=0.1, optimizer=Adam), (0.3, -0.3), 1e-8)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (None, 3.0),
        (halved, 1 + 0.5 + 0.25),
        (step, 1 + 1 + 0.1),
        (warm_up, 0.25 + 0.5 + 0.75),
        (chained, 0.25 + 0.5 / 2 + 0.75 / 4),
        (sequential, 0.5 + 0.75 + 1),
    ],
)
def test_schedule_steps_once_a_round(schedule: Schedule | None, factors: float) -> None:
    """Three rounds of two clients each, from a learning rate of 0.8."""
    assert close(rounds_of(3, schedule, lr=0.8), 0.8 * factors * U, 1e-12)


@pytest.mark.parametrize(("schedule", "stop"), [(step, 1), (one_cycle, 2), (chained, 3), (sequential, 2)])
def test_resumes_bit_for_bit(tmp_path: Path, schedule: Schedule, stop: int) -> None:
    """Model, momentum and where the schedule stands."""
    settings: dict[str, Any] = {"schedule": schedule, "lr": 0.3, "momentum": 0.9}
    whole = rounds_of(4, folder=tmp_path / "whole", **settings)
    assert torch.equal(resumed(tmp_path / "parts", settings, settings, stop), whole)
    a, b = (torch.load(tmp_path / run / "checkpoints/last.ckpt", weights_only=True) for run in ("whole", "parts"))
    (first,), (second,) = a["optimizer_states"], b["optimizer_states"]
    assert torch.equal(first["state"][0]["momentum_buffer"], second["state"][0]["momentum_buffer"])
    assert first["param_groups"] == second["param_groups"]
    assert a["lr_schedulers"] == b["lr_schedulers"]


@pytest.mark.parametrize(
    ("schedule", "before", "after", "reached"),
    [
        (None, 0.5, 0.0, 0.5 * 2),
        (None, 0.0, 2.0, 2.0 * 2),
        (step, 1.0, 3.0, 2.0 + 3 * (0.1 + 0.1)),
        (warm_up, 1.0, 3.0, 0.75 + 3 * (0.75 + 1)),
        (chained, 1.0, 3.0, 0.25 + 0.25 + 3 * (0.75 / 4 + 1 / 8)),
        (sequential, 1.0, 3.0, 1.25 + 3 * (1 + 0.5)),
    ],
)
def test_changed_learning_rate_wins(
    tmp_path: Path, schedule: Schedule | None, before: float, after: float, reached: float
) -> None:
    """Two rounds at one rate, two at the other; the schedule goes on where it was."""
    model = resumed(tmp_path, {"lr": before, "schedule": schedule}, {"lr": after, "schedule": schedule})
    assert close(model, reached * U, 1e-12)


def test_changed_momentum_wins(tmp_path: Path) -> None:
    """Velocities 1, 1.5 with β = 0.5, then 0.1·1.5 + 1 = 1.15 and 1.115 with β = 0.1."""
    assert close(resumed(tmp_path, {"momentum": 0.5}, {"momentum": 0.1}), (1 + 1.5 + 1.15 + 1.115) * U, 1e-12)


@pytest.mark.parametrize(
    ("before", "after", "factors"),
    [
        (None, warm_up, 2 + 0.75 + 1),
        (warm_up, None, 0.75 + 2),
        (halved, lambda optimizer: ExponentialLR(optimizer, 0.1), 1.5 + 0.01 + 0.001),
        (sequential, step, 1.25 + 0.1 + 0.1),
    ],
)
def test_schedule_may_change_on_resume(
    tmp_path: Path, before: Schedule | None, after: Schedule | None, factors: float
) -> None:
    """Rounds 3 and 4 take the learning rates that the new schedule has for rounds 3 and 4."""
    assert close(resumed(tmp_path, {"schedule": before}, {"schedule": after}), factors * U, 1e-12)


def test_longer_run_may_have_a_longer_schedule(tmp_path: Path) -> None:
    """Cosine: (1 + cos(πt/T))/2 is 1, 1/2 for T = 2, then 1/2, (1 - 1/√2)/2 for T = 4. OneCycle counts its steps."""

    def cosine(rounds: int) -> Schedule:
        return lambda optimizer: CosineAnnealingLR(optimizer, rounds)

    model = resumed(tmp_path / "cosine", {"schedule": cosine(2)}, {"schedule": cosine(4)})
    assert close(model, (1.5 + 0.5 + (1 - 0.5**0.5) / 2) * U, 1e-12)
    short: Schedule = lambda optimizer: OneCycleLR(optimizer, max_lr=1.0, total_steps=2)  # noqa: E731
    resumed(tmp_path / "cycle", {"schedule": short, "momentum": 0.9}, {"schedule": one_cycle, "momentum": 0.9})


def test_dropped_schedule_leaves_no_momentum_of_its_own(tmp_path: Path) -> None:
    """OneCycleLR moves the momentum between 0.95 and 0.85; afterwards it is the optimizer's again."""
    resumed(tmp_path, {"schedule": one_cycle, "momentum": 0.9}, {"momentum": 0.9})
    (group,) = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["optimizer_states"][0]["param_groups"]
    assert (group["lr"], group["momentum"]) == (1.0, 0.9)


class Counting(SGD):
    """Keeps a number of its own among its settings, as Prodigy and schedule-free optimizers do."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.param_groups[0]["steps"] = 0

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["steps"] += 1
        return super().step(closure)


def test_what_the_optimizer_counts_survives(tmp_path: Path) -> None:
    resumed(tmp_path, {"optimizer": Counting}, {"optimizer": Counting, "lr": 0.5})
    (group,) = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["optimizer_states"][0]["param_groups"]
    assert (group["steps"], group["lr"]) == (4, 0.5)


def test_refuses_a_schedule_that_waits_for_a_metric() -> None:
    with pytest.raises(ConfigurationError, match="server_scheduler must go by rounds alone, got Reduce"):
        rounds_of(1, ReduceLROnPlateau)


# On the command line

EXPONENTIAL = ("--model.server_scheduler", "torch.optim.lr_scheduler.ExponentialLR")
MONITOR = "--trainer.callbacks+=LearningRateMonitor"


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


@pytest.mark.usefixtures("_folder")
def test_command_line_schedules_and_logs_the_learning_rate() -> None:
    """The rate that each round was made with, in its row; a stop and a new rate in between."""
    gamma = (*EXPONENTIAL, "--model.server_scheduler.gamma", 0.9, MONITOR)
    fit("--trainer.max_epochs", 3, "--model.server_optimizer.lr", 0.8, *gamma)
    rates = [row["lr-SGD"] for row in rows(RUN / "metrics.csv")]
    assert rates == pytest.approx([0.8, 0.72, 0.648], abs=1e-6)
    resumed = ("--ckpt_path", "last", "--resume_changed", "true")
    fit("--trainer.max_epochs", 5, "--model.server_optimizer.lr", 0.4, *gamma, *resumed)
    rates = [row["lr-SGD"] for row in rows(RUN / "metrics.csv")]
    assert rates == pytest.approx([0.8, 0.72, 0.648, 0.4 * 0.729, 0.4 * 0.6561], abs=1e-6)


@pytest.mark.usefixtures("_folder")
def test_best_checkpoint_goes_on_where_its_schedule_was() -> None:
    """Written while the round is validated, before Lightning counts it: the next round is the second all the same."""
    options = (*EXPONENTIAL, "--model.server_scheduler.gamma", 0.5, MONITOR)
    fit("--trainer.max_epochs", 1, *options)
    best = RUN / "checkpoints" / "best.ckpt"
    assert torch.load(best, weights_only=True)["rounds_done"] == 1
    fit("--trainer.max_epochs", 3, "--ckpt_path", best, *options)
    assert [row["lr-SGD"] for row in rows(RUN / "metrics.csv")] == [1.0, 0.5, 0.25]
