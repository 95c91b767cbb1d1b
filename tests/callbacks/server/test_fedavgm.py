"""Server momentum: two rounds of T by hand, and its properties."""

from typing import Any

import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close, train, uniform_update

from fl_lightning.callbacks import FedAvg, FedAvgM, GradientHarmonization


def test_two_rounds_of_the_toy_problem() -> None:
    """Follow two rounds of T with server momentum β = 0.9 and uniform weights."""
    w_1 = uniform_update(torch.zeros(2, dtype=torch.float64))
    w_2 = w_1 + 0.9 * w_1 + uniform_update(w_1)
    assert close(torch.stack([w_1, w_2]), ((-0.562, -0.037375), (-1.391793, -0.0989946953125)))  # by hand
    rules = (FedAvg("uniform"), FedAvgM(0.9))
    assert close(train(*rules), w_1)
    assert close(train(*rules, rounds=2), w_2)


def test_is_the_server_optimizer_with_momentum() -> None:
    def sgd(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=1.0, momentum=0.7)

    assert torch.equal(train(FedAvgM(0.7), rounds=4), train(rounds=4, server_optimizer=sgd))


def test_acts_on_the_update_that_the_others_arrive_at() -> None:
    """Harmonised, the average of the three is u = (-0.5, -0.5) (see test_gh): the two steps are u and 1.9 u."""
    rules = [GradientHarmonization(order="ascending"), FedAvgM(0.9)]
    for chain in (rules, rules[::-1]):
        assert close(apply(UPDATES, *chain, samples=[1, 1, 2], rounds=2)[0], (-1.45, -1.45))
