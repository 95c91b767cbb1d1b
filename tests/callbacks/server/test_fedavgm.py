"""Server momentum: two rounds of T by hand, in three conventions, and its properties."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toy import UPDATES, Quadratic, ToyData, close, send, train, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedAvgM, GradientHarmonization
from fl_lightning.runs.checkpoints import LastCheckpoint

CONVENTIONS: list[Any] = ["heavy ball", "ema", "nesterov"]


@pytest.mark.parametrize(
    ("convention", "first", "second"),
    [
        ("heavy ball", (-0.562, -0.037375), (-1.391793, -0.0989946953125)),
        ("ema", (-0.0562, -0.0037375), (-0.16059993, -0.010744821953125)),
        ("nesterov", (-1.0678, -0.0710125), (-1.73161473, -0.138390725078125)),
    ],
)
def test_two_rounds_of_the_toy_problem(convention: Any, first: Any, second: Any) -> None:
    """β = 0.9 and uniform weights. From (x, y), (w - B) shrinks by (0.81, 0.64) and (0.343, 0.857375): see test_fedavg.

    Twice the update is (1 + 0.81(x - 1) - 2 + 0.343(x + 2) - 2x, -1 + 0.64(y + 1) + 2 + 0.857375(y - 2) - 2y), so that
    u = (-0.562 - 0.4235 x, -0.037375 - 0.2513125 y), and u₁ = (-0.562, -0.037375).
    Heavy ball: w₁ = u₁, u₂ = (-0.323993, -0.0279821953125), w₂ = w₁ + 0.9 u₁ + u₂.
    EMA: w₁ = 0.1 u₁, u₂ = (-0.5381993, -0.03643571953125), w₂ = w₁ + 0.09 u₁ + 0.1 u₂.
    Nesterov: w₁ = 1.9 u₁, u₂ = (-0.1097867, -0.01952867109375), v₂ = 0.9 u₁ + u₂, w₂ = w₁ + 0.9 v₂ + u₂.
    """
    rules = (FedAvg("uniform"), FedAvgM(0.9, convention))
    assert close(train(*rules), first)
    assert close(train(*rules, rounds=2), second)


def test_heavy_ball_is_the_server_optimizer_with_momentum() -> None:
    def sgd(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=1.0, momentum=0.7)

    assert torch.equal(train(FedAvgM(0.7), rounds=4), train(rounds=4, server_optimizer=sgd))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_without_momentum_is_fedavg_bit_for_bit(convention: Any) -> None:
    assert torch.equal(train(FedAvgM(0.0, convention), rounds=3), train(rounds=3))


def test_acts_on_the_update_that_the_others_arrive_at() -> None:
    """Harmonised, the average of the three is (-0.5, -0.5) (see test_gh); EMA takes a tenth, wherever it stands."""
    rules = [GradientHarmonization(order="ascending"), FedAvgM(0.9, "ema")]
    for chain in (rules, rules[::-1]):
        assert close(send(UPDATES, *chain, samples=[1, 1, 2])[0], (-0.05, -0.05))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_zero_updates_leave_the_model(convention: Any) -> None:
    assert torch.equal(send([[0.0, 0.0], [0.0, 0.0]], FedAvgM(0.9, convention))[0], torch.zeros(2).double())


def saved(folder: Path, rounds: int, rule: FedAvgM, resume: Path | None = None) -> Path:
    """The checkpoint of a run of T."""
    run = trainer(rule, LastCheckpoint(), rounds=rounds, default_root_dir=folder, enable_checkpointing=True)
    run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData(), ckpt_path=resume)
    return folder / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_resumes_bit_for_bit(tmp_path: Path, convention: Any) -> None:
    """Stopped after 2 of 4 rounds; the velocity comes back."""
    whole = saved(tmp_path / "whole", 4, FedAvgM(0.9, convention))
    stopped = saved(tmp_path / "parts", 2, FedAvgM(0.9, convention))
    parts = saved(tmp_path / "parts", 4, FedAvgM(0.9, convention), stopped)
    (w, v), (w_parts, v_parts) = model_and_velocity(whole), model_and_velocity(parts)
    assert torch.equal(w, w_parts)
    assert torch.equal(v, v_parts)
    assert bool(v.any())


def model_and_velocity(checkpoint: Path) -> tuple[Tensor, Tensor]:
    content = torch.load(checkpoint, weights_only=True)
    return content["state_dict"]["client.w"], content["callbacks"]["FedAvgM"]["velocity"]


def test_a_second_fit_starts_without_velocity() -> None:
    rule = FedAvgM()
    assert torch.equal(train(rule, rounds=2), train(rule, rounds=2))


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_refuses_a_momentum_out_of_range(momentum: float) -> None:
    with pytest.raises(ConfigurationError, match=rf"momentum must be in \[0, 1\), got {momentum}"):
        FedAvgM(momentum)


def test_refuses_a_convention_that_it_does_not_know() -> None:
    with pytest.raises(ConfigurationError, match="convention must be 'heavy ball', 'ema' or 'nesterov', got 'adam'"):
        FedAvgM(convention="adam")  # type: ignore[arg-type]
