"""Server momentum: two rounds of T by hand, in three conventions, and its properties."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toy import UPDATES, A, B, Quadratic, ToyData, close, send, train, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedAvgM, GradientHarmonization
from fl_lightning.runs.checkpoints import LastCheckpoint

CONVENTIONS: list[Any] = ["heavy ball", "ema", "nesterov"]


@pytest.mark.parametrize(
    ("convention", "by_hand"),
    [
        ("heavy ball", ((-0.562, -0.037375), (-1.391793, -0.0989946953125))),
        ("ema", ((-0.0562, -0.0037375), (-0.16059993, -0.010744821953125))),
        ("nesterov", ((-1.0678, -0.0710125), (-1.73161473, -0.138390725078125))),
    ],
)
def test_two_rounds_of_the_toy_problem(convention: Any, by_hand: Any) -> None:
    """Follow two rounds of T with server momentum β = 0.9 and uniform weights in each convention."""
    shrink_0, shrink_1 = (1 - 0.1 * A[0]) ** 2, (1 - 0.1 * A[1]) ** 3  # of w - B_i in two and in three local steps

    def update(w: Tensor) -> Tensor:
        end_0, end_1 = B[0] + shrink_0 * (w - B[0]), B[1] + shrink_1 * (w - B[1])
        return (end_0 + end_1) / 2 - w

    u_1 = update(torch.zeros(2, dtype=torch.float64))
    assert close(u_1, (-0.562, -0.037375))  # by hand
    w_1 = {"heavy ball": u_1, "ema": 0.1 * u_1, "nesterov": 0.9 * u_1 + u_1}[convention]
    u_2 = update(w_1)
    v_2 = 0.9 * u_1 + u_2
    w_2 = w_1 + {"heavy ball": v_2, "ema": 0.1 * v_2, "nesterov": 0.9 * v_2 + u_2}[convention]
    assert close(torch.stack([w_1, w_2]), by_hand)
    rules = (FedAvg("uniform"), FedAvgM(0.9, convention))
    assert close(train(*rules), w_1)
    assert close(train(*rules, rounds=2), w_2)


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
