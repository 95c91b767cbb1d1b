"""Server momentum: two rounds of T by hand, in three conventions, and its properties."""

from typing import Any

import pytest
import torch
from hand_made import apply
from toy import UPDATES, close, train, uniform_update

from fl_lightning.callbacks import FedAvg, FedAvgM, GradientHarmonization


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
    u_1 = uniform_update(torch.zeros(2, dtype=torch.float64))
    assert close(u_1, (-0.562, -0.037375))  # by hand
    w_1 = {"heavy ball": u_1, "ema": 0.1 * u_1, "nesterov": 0.9 * u_1 + u_1}[convention]
    u_2 = uniform_update(w_1)
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


def test_acts_on_the_update_that_the_others_arrive_at() -> None:
    """Harmonised, the average of the three is (-0.5, -0.5) (see test_gh); EMA takes a tenth, wherever it stands."""
    rules = [GradientHarmonization(order="ascending"), FedAvgM(0.9, "ema")]
    for chain in (rules, rules[::-1]):
        assert close(apply(UPDATES, *chain, samples=[1, 1, 2])[0], (-0.05, -0.05))
