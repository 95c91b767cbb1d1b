"""FedMGDA+ by hand on two and three updates."""

import math
from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close

from fl_lightning.callbacks import FedAvg, FedMGDAPlus, PCGrad

HALF = math.sqrt(0.5)


@pytest.mark.parametrize("degrees", [10, 60, 90, 120, 170])
@pytest.mark.parametrize("lengths", [(1.0, 1.0), (2.0, 5.0), (1e-6, 1e6)])
def test_two_updates_count_the_same_at_any_angle(degrees: float, lengths: tuple[float, float]) -> None:
    """‖λ u₁ + (1-λ) u₂‖² = 1 - 2 λ(1-λ)(1 - cos θ) is smallest at λ = 1/2, whatever the lengths and n = (1, 3)."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    updates = [[lengths[0], 0.0], [lengths[1] * cosine, lengths[1] * sine]]
    model, capture = apply(updates, FedMGDAPlus(epsilon=1.0), samples=[1, 3])
    assert close(capture.cohort.weights, (0.5, 0.5), 1e-7)
    assert close(model, ((1 + cosine) / 2, sine / 2), 1e-7)


@pytest.mark.parametrize(
    ("epsilon", "weights"), [(0.0, (0.25, 0.75)), (0.1, (0.35, 0.65)), (0.2, (0.45, 0.55)), (0.3, (0.5, 0.5))]
)
def test_weights_stay_near_the_usual_ones(epsilon: float, weights: tuple[float, float]) -> None:
    """With n = (1, 3), u₁ = (1, 0), u₂ = (0, 1): λ goes from (1/4, 3/4) towards (1/2, 1/2), by ε at most."""
    model, capture = apply([[3.0, 0.0], [0.0, 4.0]], FedMGDAPlus(epsilon), samples=[1, 3])
    assert close(capture.cohort.weights, weights, 1e-7)
    assert close(model, weights, 1e-7)


@pytest.mark.parametrize(
    ("updates", "epsilon", "weights"),
    [
        ([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0]], 1.0, (1 / 3, 1 / 3, 1 / 3)),
        ([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]], 1.0, (0.5, 0.5, 0.0)),
        ([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]], 0.1, (23 / 60, 23 / 60, 7 / 30)),
        ([[1.0, 0.0], [3.0, 3.0], [0.0, 2.0]], 0.1, (23 / 60, 7 / 30, 23 / 60)),
    ],
)
def test_three_updates(updates: Any, epsilon: float, weights: tuple[float, ...]) -> None:
    """Orthogonal ones are equal. (1, 1)/√2 is further from 0 than the middle of (1, 0) and (0, 1) in its direction: it
    gets the least that it may, 0 or 1/3 - 0.1 = 7/30, and the others share the rest.
    """
    _, capture = apply(updates, FedMGDAPlus(epsilon))
    assert close(capture.cohort.weights, weights, 1e-7)


def test_step_of_a_bound_that_is_active() -> None:
    """λ = (23, 23, 14)/60 from above, u₃ = (1, 1)/√2."""
    model, _ = apply([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]], FedMGDAPlus())
    assert close(model, (23 / 60 + 7 / 30 * HALF,) * 2, 1e-7)


def test_epsilon_zero_averages_the_unit_updates() -> None:
    """(2, 0), (-1, 1), (-1, -2) by n = (1, 1, 2): (1, 0)/4 + (-1, 1)/(4√2) - (1, 2)/(2√5)."""
    expected = (0.25 - HALF / 4 - 0.5 / math.sqrt(5), HALF / 4 - 1 / math.sqrt(5))
    model, capture = apply(UPDATES, FedMGDAPlus(0.0), samples=[1, 1, 2])
    assert close(model, expected)
    assert close(capture.cohort.weights, (0.25, 0.25, 0.5), 0.0)


def test_descends_for_all() -> None:
    """The shortest vector d of the hull has u·d >= ‖d‖² for every u in it; here 0 is none of them."""
    draw = torch.Generator().manual_seed(2)
    updates = torch.randn(6, 20, generator=draw, dtype=torch.float64) * torch.logspace(-3, 3, 6)[:, None]
    step, capture = apply(updates, FedMGDAPlus(1.0))
    assert float(capture.cohort.weights.min()) >= 0
    units = torch.nn.functional.normalize(updates)
    assert 0 < float(step @ step) < 1
    assert float((units @ step).min()) >= float(step @ step) - 1e-7


def test_opposite_updates_cancel() -> None:
    assert close(apply([[0.1, 0.7], [-0.3, -2.1]], FedMGDAPlus(1.0))[0], (0.0, 0.0), 1e-7)


@pytest.mark.parametrize(("epsilon", "weights"), [(0.0, (0.25, 0.0, 0.75)), (1.0, (0.5, 0.0, 0.5))])
def test_zero_update_takes_no_weight(epsilon: float, weights: tuple[float, ...]) -> None:
    """With n = (1, 2, 3) the shares of the other two are (1/4, 3/4)."""
    model, capture = apply([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]], FedMGDAPlus(epsilon), samples=[1, 2, 3])
    assert close(capture.cohort.weights, weights, 1e-7)
    assert close(model, (weights[0], weights[2]), 1e-7)


def test_one_client_alone_takes_a_step_of_length_one() -> None:
    """(3, -4) / 5."""
    assert close(apply([[3.0, -4.0]], FedMGDAPlus())[0], (0.6, -0.8))


def test_starts_from_the_weights_so_far() -> None:
    """Whatever their sum: that of PCGrad's is K."""
    for before in FedAvg("uniform"), PCGrad("sum", "ascending"):
        _, capture = apply([[1.0, 0.0], [0.0, 2.0]], before, FedMGDAPlus(0.0), samples=[1, 3])
        assert close(capture.cohort.weights, (0.5, 0.5))
