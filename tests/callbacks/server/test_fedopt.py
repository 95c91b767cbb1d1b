"""FedAdagrad, FedYogi and FedAdam: rounds by hand, composition, and what their state is for."""

from math import sqrt
from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close, train, uniform_update

from fl_lightning import FederatedCallback
from fl_lightning.callbacks import CoordinateMedian, FedAdagrad, FedAdam, FedAvg, FedYogi, GradientHarmonization

HALVES = {"lr": 1.0, "beta1": 0.5, "tau": 1.0}


@pytest.mark.parametrize(
    ("rule", "v"),
    [
        (FedAdagrad(**HALVES), ((2.0, 3.0, 4.0), (5.0, 9.0, 13.0))),
        (FedYogi(**HALVES, beta2=0.5), ((1.0, 1.0, 1.0), (3.0, 5.0, 3.0))),
        (FedAdam(**HALVES, beta2=0.5), ((1.0, 1.0, 1.0), (2.5, 3.25, 3.625))),
    ],
    ids=["adagrad", "yogi", "adam"],
)
def test_three_rounds_of_equal_updates(rule: FederatedCallback, v: tuple[tuple[float, ...], ...]) -> None:
    """For u = (1, -2), u² = (1, 4), v starts at τ² = 1. m is 1/2, 3/4, 7/8 of u; a step is m/(√v + 1).

    Adagrad: v = 1 + 1 + …; 1 + 4 + …. Adam, half old and half new: 1, 1, 1; 2.5, 3.25, 3.625. Yogi, by u²/2 towards
    u²: 1 is there and stays; 1 + 2 = 3, 3 + 2 = 5, 5 - 2 = 3.
    """
    model, _ = apply([[1.0, -2.0]], rule, rounds=3)
    shares = (0.5, 0.75, 0.875)
    x, y = (sum(m / (sqrt(moment) + 1) for m, moment in zip(shares, row, strict=True)) for row in v)
    assert close(model, (x, -2 * y))


@pytest.mark.parametrize(
    ("rule", "beta_1", "keep", "gain", "by_hand"),
    [
        (FedAdagrad(), 0.9, 1, 1, (-0.0099822, -0.0233975)),
        (FedAdagrad(beta1=0), 0.0, 1, 1, (-0.0998222, -0.1676290)),
        (FedYogi(), 0.9, 1, 0.01, (-0.0982365, -0.2304782)),  # every u² here is above v: nothing is let go
        (FedAdam(), 0.9, 0.99, 0.01, (-0.0982366, -0.2308314)),
    ],
    ids=["adagrad", "adagrad without momentum", "yogi", "adam"],
)
def test_two_rounds_of_the_toy_problem(
    rule: FederatedCallback, beta_1: float, keep: float, gain: float, by_hand: tuple[float, float]
) -> None:
    """Follow two rounds of T with lr = 0.1, τ = 10⁻³ and uniform weights; v becomes keep · v + gain · u²."""
    u_1 = uniform_update(torch.zeros(2, dtype=torch.float64))
    m_1, v_1 = (1 - beta_1) * u_1, keep * 1e-6 + gain * u_1**2  # m starts at 0, v at τ²
    w_1 = 0.1 * m_1 / (v_1**0.5 + 1e-3)
    u_2 = uniform_update(w_1)
    m_2, v_2 = beta_1 * m_1 + (1 - beta_1) * u_2, keep * v_1 + gain * u_2**2
    w_2 = w_1 + 0.1 * m_2 / (v_2**0.5 + 1e-3)
    assert [float(w_1[0]), float(w_2[0])] == pytest.approx(by_hand, abs=1e-7)
    assert close(train(FedAvg("uniform"), rule), w_1)
    assert close(train(FedAvg("uniform"), rule, rounds=2), w_2)


@pytest.mark.parametrize(
    ("other", "update"), [(GradientHarmonization(order="ascending"), (-0.5, -0.5)), (CoordinateMedian(), (-1.0, 0.0))]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_acts_on_the_update_that_the_others_arrive_at(other: Any, update: tuple[float, float], reverse: bool) -> None:
    """Harmonised, the three average to (-0.5, -0.5) (see test_gh); their medians are (-1, 0).

    With β₁ = β₂ = 1/2 and τ = 1, a first u steps by u/2 / (√(1/2 + u²/2) + 1).
    """
    rules = [other, FedAdam(**HALVES, beta2=0.5)]
    model, _ = apply(UPDATES, *(rules[::-1] if reverse else rules), samples=[1, 1, 2])
    assert close(model, [u / 2 / (sqrt((1 + u**2) / 2) + 1) for u in update])


@pytest.mark.parametrize("rule", [FedAdagrad, FedYogi, FedAdam])
def test_first_step_has_no_bias_correction(rule: Any) -> None:
    """A huge update: Adagrad steps by lr (1 - β₁), the others by lr (1 - β₁)/√(1 - β₂) = 0.1·0.1/0.1."""
    step = 0.01 if rule is FedAdagrad else 0.1
    assert close(apply([[1e9, -1e9]], rule())[0], (step, -step))
