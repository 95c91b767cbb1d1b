"""CAGrad by hand on two and three updates, and by the duality of its problem."""

import math
from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close

from fl_lightning.callbacks import CAGrad, FedAvg, PCGrad
from fl_lightning.callbacks.server.cagrad import conflict_averse_weights

SKEW = [[1.0, 0.0], [0.0, 2.0]]


@pytest.mark.parametrize("c", [0.2, 0.5, 0.9])
def test_orthogonal_units(c: float) -> None:
    """g0 = (1, 1)/2. Both updates are alike, so w = (1/2, 1/2), g_w = g0 and the step is (1 + c) g0."""
    model, capture = apply([[1.0, 0.0], [0.0, 1.0]], CAGrad(c))
    assert close(model, ((1 + c) / 2, (1 + c) / 2), 1e-7)
    assert close(capture.cohort.weights, ((1 + c) / 2, (1 + c) / 2), 1e-7)


def test_the_worst_client_takes_it_all() -> None:
    """g₁ = (1, 0), g₂ = (0, 2), c = 1/2: g0 = (0.5, 1), √φ = √1.25 / 2.

    With w = (1, 0) the step is (0.5 + √φ, 1): g₁ gains 1.06 of it, g₂ gains 2, so g₁ is the worst, as w says.
    """
    assert close(apply(SKEW, CAGrad(0.5))[0], (0.5 + math.sqrt(1.25) / 2, 1.0), 1e-7)


def test_both_gain_the_same() -> None:
    """g₁ = (1, 0), g₂ = (0, 2) by n = (3, 1): g0 = (0.75, 0.5), φ = 0.8125 / 4.

    w is inside, so both gain the same: the step is (2t, t) with (2t - 0.75)² + (t - 0.5)² = φ, that is
    5t² - 4t + 0.609375 = 0, the larger root t = (4 + √3.8125) / 10. (0.44, 0.10) leads there from g0, as some w can.
    """
    t = (4 + math.sqrt(3.8125)) / 10
    assert close(apply(SKEW, CAGrad(0.5), samples=[3, 1])[0], (2 * t, t), 1e-7)


def test_opposite_updates_of_unequal_weight() -> None:
    """(1, 0), (-1, 0) by n = (1, 3): g0 = (-0.5, 0). F(w) = -0.5 s + 0.25 |s| with s = w₁ - w₂ is smallest at s = 1.

    The step is (-0.5, 0) + 0.25 (1, 0).
    """
    assert close(apply([[1.0, 0.0], [-1.0, 0.0]], CAGrad(), samples=[1, 3])[0], (-0.25, 0.0), 1e-7)


def test_the_best_combination_vanishes() -> None:
    """(1, 0), (-1, 0), (0, 1): g0 = (0, 1/3), F = w₃/3 + ‖(w₁ - w₂, w₃)‖/6 >= 0 is smallest where g_w = 0."""
    assert close(apply([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], CAGrad())[0], (0.0, 1 / 3))


@pytest.mark.parametrize("c", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("size", "columns"), [(2, 2), (3, 2), (5, 40), (20, 5), (20, 400)])
def test_duality(size: int, columns: int, c: float) -> None:
    """For d within c‖g0‖ of g0 and any w, min_k g_k·d <= g_w·d <= F(w): where both ends meet, d and w are best."""
    draw = torch.Generator().manual_seed(size + columns)
    g = torch.randn(size, columns, generator=draw, dtype=torch.float64) * torch.logspace(-1, 1, size)[:, None]
    samples = list(range(1, size + 1))
    plain, _ = apply(g, samples=samples)
    step, capture = apply(g, CAGrad(c), samples=samples)
    w = capture.cohort.weights - torch.tensor(samples).double() / sum(samples)
    w = w / w.sum()
    assert float(w.min()) >= -1e-12
    radius = c * plain.norm()
    assert float((step - plain).norm() / radius) == pytest.approx(1, abs=1e-9)
    worst, bound = (g @ step).min(), w @ g @ plain + radius * (w @ g).norm()
    assert float((bound - worst) / g.norm(dim=1).max() ** 2) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_scales_with_the_updates(scale: float) -> None:
    updates = torch.tensor(UPDATES, dtype=torch.float64)
    assert close(apply(scale * updates, CAGrad())[0] / scale, apply(updates, CAGrad())[0])


def test_one_client_alone_is_made_longer() -> None:
    assert close(apply([[1.0, -3.0]], CAGrad(0.5))[0], (1.5, -4.5))


@pytest.mark.parametrize("updates", [[[0.0, 0.0]] * 3, [[0.1, 0.3], [-0.3, 0.1], [0.2, -0.4]]], ids=["zero", "sum"])
def test_an_average_of_zero_stays_zero(updates: Any) -> None:
    model, capture = apply(updates, CAGrad())
    assert close(model, (0.0, 0.0), 1e-16)
    assert close(capture.cohort.weights, [1 / 3] * 3, 0.0)


def test_what_rounding_leaves_of_a_sum_of_zero_is_no_average() -> None:
    thirds = torch.full((3,), 1 / 3, dtype=torch.float64)
    for x, y in torch.cartesian_prod(torch.arange(1, 10), torch.arange(1, 10)).double() / 10:
        g = torch.stack([x, y, x * 0 - 0.3, y * 0 + 0.1, 0.3 - x, -0.1 - y]).reshape(3, 2)
        assert torch.equal(conflict_averse_weights(g @ g.T, thirds, 0.5), thirds)


@pytest.mark.parametrize("update", [[2.0, 1.0], [1.0, 0.0], [3.0, 0.0], [0.3, -0.7]])
def test_a_zero_update_beside_others(update: list[float]) -> None:
    """(0, 0) gains nothing of any step: F = 0 with w on it, so that g_w = 0 and the step is g0, half of the other."""
    assert close(apply([update, [0.0, 0.0]], CAGrad())[0], [x / 2 for x in update], 1e-15)


def test_a_zero_update_beside_any_that_agree() -> None:
    """Whatever the solver's rounding is, the step is g0."""
    draw = torch.Generator().manual_seed(0)
    for clients in range(2, 12):
        g = torch.rand(clients, 5, dtype=torch.float64, generator=draw)  # no negative number: no conflict
        g[0] = 0
        equal = torch.full((clients,), 1 / clients, dtype=torch.float64)
        assert torch.equal(conflict_averse_weights(g @ g.T, equal, 0.5), equal)


def test_works_on_the_updates_and_weights_so_far() -> None:
    """PCGrad makes (2, 0), (-1, 1) into (1, 1), (0, 1) of weight 1 each: g0 = (1, 2), c‖g0‖ = √5 / 2.

    (1, 1) - t (1, 0) is worst at w = (0, 1), where the step is (1, 2 + √5/2): (0, 1) gains less than (1, 1) does.
    """
    model, _ = apply([[2.0, 0.0], [-1.0, 1.0]], PCGrad("sum"), CAGrad(), samples=[1, 3])
    assert close(model, (1.0, 2 + math.sqrt(5) / 2), 1e-7)
    uniform, _ = apply(UPDATES, FedAvg("uniform"), CAGrad(), samples=[1, 1, 2])
    assert close(uniform, apply(UPDATES, CAGrad())[0])


@pytest.mark.parametrize("c", [0.0, 0.5, 0.9])
def test_rescaled_as_in_the_released_code(c: float) -> None:
    """The released code divides the step by 1 + c²."""
    assert close(apply(SKEW, CAGrad(c, rescale=True))[0], apply(SKEW, CAGrad(c))[0] / (1 + c * c))


@pytest.mark.parametrize(
    ("updates", "released"),
    [
        (SKEW, [0.847136470238971, 0.8000000000124332]),
        ([[2.0, 0.0], [-1.0, 1.0], [-1.0, -2.0], [3.0, 1.0]], [0.30000948776599173, 2.60682783852495e-06]),
        (
            [[100.0, 0.0, 50.0], [-70.0, 60.0, 10.0], [0.0, 40.0, 80.0]],
            [4.272521183839041, 45.90255307190516, 49.9024691867247],
        ),
    ],
)
def test_fedomg_is_this_rule(updates: Any, released: list[float]) -> None:
    """omg_low of skydvn/FedOMG, run apart in float64 with c = ½ and 5000 steps of its SGD, not 25, at constant rate.

    That code adds 1e-4 under its roots, in units of the updates' mean norm: the steps agree to 0.3 % of their length.
    """
    ours, _ = apply(updates, FedAvg("uniform"), CAGrad(0.5, rescale=True), samples=list(range(1, len(updates) + 1)))
    assert close(ours / ours.norm(), torch.tensor(released).double() / ours.norm(), 3e-3)
