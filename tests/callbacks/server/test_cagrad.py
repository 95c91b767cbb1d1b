"""CAGrad by hand on two and three updates, and by the duality of its problem."""

import math
from typing import Any

import pytest
import torch
from toy import UPDATES, close, send

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import CAGrad, FedAvg, PCGrad
from fl_lightning.callbacks.server.cagrad import conflict_averse_weights

SKEW = [[1.0, 0.0], [0.0, 2.0]]


@pytest.mark.parametrize("c", [0.2, 0.5, 0.9])
def test_orthogonal_units(c: float) -> None:
    """g0 = (1, 1)/2. Both updates are alike, so w = (1/2, 1/2), g_w = g0 and the step is (1 + c) g0."""
    model, capture = send([[1.0, 0.0], [0.0, 1.0]], CAGrad(c))
    assert close(model, ((1 + c) / 2, (1 + c) / 2), 1e-7)
    assert close(capture.cohort.weights, ((1 + c) / 2, (1 + c) / 2), 1e-7)


def test_the_worst_client_takes_it_all() -> None:
    """g₁ = (1, 0), g₂ = (0, 2), c = 1/2: g0 = (0.5, 1), √φ = √1.25 / 2.

    With w = (1, 0) the step is (0.5 + √φ, 1): g₁ gains 1.06 of it, g₂ gains 2, so g₁ is the worst, as w says.
    """
    assert close(send(SKEW, CAGrad(0.5))[0], (0.5 + math.sqrt(1.25) / 2, 1.0), 1e-7)


def test_both_gain_the_same() -> None:
    """g₁ = (1, 0), g₂ = (0, 2) by n = (3, 1): g0 = (0.75, 0.5), φ = 0.8125 / 4.

    w is inside, so both gain the same: the step is (2t, t) with (2t - 0.75)² + (t - 0.5)² = φ, that is
    5t² - 4t + 0.609375 = 0, the larger root t = (4 + √3.8125) / 10. (0.44, 0.10) leads there from g0, as some w can.
    """
    t = (4 + math.sqrt(3.8125)) / 10
    assert close(send(SKEW, CAGrad(0.5), samples=[3, 1])[0], (2 * t, t), 1e-7)


def test_opposite_updates_of_unequal_weight() -> None:
    """(1, 0), (-1, 0) by n = (1, 3): g0 = (-0.5, 0). F(w) = -0.5 s + 0.25 |s| with s = w₁ - w₂ is smallest at s = 1.

    The step is (-0.5, 0) + 0.25 (1, 0).
    """
    assert close(send([[1.0, 0.0], [-1.0, 0.0]], CAGrad(), samples=[1, 3])[0], (-0.25, 0.0), 1e-7)


def test_the_best_combination_vanishes() -> None:
    """(1, 0), (-1, 0), (0, 1): g0 = (0, 1/3), F = w₃/3 + ‖(w₁ - w₂, w₃)‖/6 >= 0 is smallest where g_w = 0."""
    assert close(send([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], CAGrad())[0], (0.0, 1 / 3))


def test_a_grid_over_w() -> None:
    """(2, 0), (-1, 1) by n = (1, 2): g0 = (0, 2/3); F on a million points of w = (t, 1 - t)."""
    g = torch.tensor([[2.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    g0 = torch.tensor([0.0, 2 / 3], dtype=torch.float64)
    t = torch.linspace(0, 1, 1_000_001, dtype=torch.float64)
    combined = t[:, None] * g[0] + (1 - t)[:, None] * g[1]
    radius = 0.5 * g0.norm()
    best = combined[(combined @ g0 + radius * combined.norm(dim=1)).argmin()]
    assert 0.1 < float(best[1]) < 0.9  # no corner: those are at 0 and 1
    assert close(send(g, CAGrad(), samples=[1, 2])[0], g0 + radius * best / best.norm(), 1e-5)


@pytest.mark.parametrize("c", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("size", "columns"), [(2, 2), (3, 2), (5, 40), (20, 5), (20, 400)])
def test_duality(size: int, columns: int, c: float) -> None:
    """For d within c‖g0‖ of g0 and any w, min_k g_k·d <= g_w·d <= F(w): where both ends meet, d and w are best."""
    draw = torch.Generator().manual_seed(size + columns)
    g = torch.randn(size, columns, generator=draw, dtype=torch.float64) * torch.logspace(-1, 1, size)[:, None]
    samples = list(range(1, size + 1))
    plain, _ = send(g, samples=samples)
    step, capture = send(g, CAGrad(c), samples=samples)
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
    assert close(send(scale * updates, CAGrad())[0] / scale, send(updates, CAGrad())[0])


def test_c_zero_is_exactly_fedavg() -> None:
    assert torch.equal(send(UPDATES, CAGrad(0.0), samples=[1, 1, 2])[0], send(UPDATES, samples=[1, 1, 2])[0])


def test_one_client_alone_is_made_longer() -> None:
    assert close(send([[1.0, -3.0]], CAGrad(0.5))[0], (1.5, -4.5))


@pytest.mark.parametrize("updates", [[[0.0, 0.0]] * 3, [[0.1, 0.3], [-0.3, 0.1], [0.2, -0.4]]], ids=["zero", "sum"])
def test_an_average_of_zero_stays_zero(updates: Any) -> None:
    model, capture = send(updates, CAGrad())
    assert close(model, (0.0, 0.0), 1e-16)
    assert close(capture.cohort.weights, [1 / 3] * 3, 0.0)


def test_what_rounding_leaves_of_a_sum_of_zero_is_no_average() -> None:
    thirds = torch.full((3,), 1 / 3, dtype=torch.float64)
    for x, y in torch.cartesian_prod(torch.arange(1, 10), torch.arange(1, 10)).double() / 10:
        g = torch.stack([x, y, x * 0 - 0.3, y * 0 + 0.1, 0.3 - x, -0.1 - y]).reshape(3, 2)
        assert torch.equal(conflict_averse_weights(g @ g.T, thirds, 0.5), thirds)


def test_a_zero_update_beside_others() -> None:
    """(0, 0) gains nothing of any step: F = 0 with w on it, so that g_w = 0 and the step is g0 = (1, 0.5)."""
    assert close(send([[2.0, 1.0], [0.0, 0.0]], CAGrad())[0], (1.0, 0.5))


def test_works_on_the_updates_and_weights_so_far() -> None:
    """PCGrad makes (2, 0), (-1, 1) into (1, 1), (0, 1) of weight 1 each: g0 = (1, 2), c‖g0‖ = √5 / 2.

    (1, 1) - t (1, 0) is worst at w = (0, 1), where the step is (1, 2 + √5/2): (0, 1) gains less than (1, 1) does.
    """
    model, _ = send([[2.0, 0.0], [-1.0, 1.0]], PCGrad("sum"), CAGrad(), samples=[1, 3])
    assert close(model, (1.0, 2 + math.sqrt(5) / 2), 1e-7)
    uniform, _ = send(UPDATES, FedAvg("uniform"), CAGrad(), samples=[1, 1, 2])
    assert close(uniform, send(UPDATES, CAGrad())[0])


@pytest.mark.parametrize("c", [0.2, 0.5, 0.9])
def test_rescaled_as_in_the_released_code(c: float) -> None:
    """Of g₁ = (1, 0), g₂ = (0, 2), g0 = (0.5, 1), the best g_w by trying w = (t, 1 - t); the step over 1 + c²."""
    radius = c * math.sqrt(0.5**2 + 1)
    best = (math.inf, 0.0, 0.0)
    for number in range(100_001):
        x, y = number / 100_000, 2 - 2 * number / 100_000  # g_w
        best = min(best, (0.5 * x + y + radius * math.hypot(x, y), x, y))
    _, x, y = best
    step = [(g + radius * part / math.hypot(x, y)) / (1 + c * c) for g, part in ((0.5, x), (1.0, y))]
    assert close(send(SKEW, CAGrad(c, rescale=True))[0], step, 1e-4)
    assert not close(send(SKEW, CAGrad(c))[0], step, 1e-2)


def test_rescaled_with_one_client() -> None:
    """1 + c = 1.5 times the update over 1 + c² = 1.25; c = 0 divides by 1."""
    assert close(send([[1.0, -3.0]], CAGrad(0.5, rescale=True))[0], (1.2, -3.6))
    assert torch.equal(send(UPDATES, CAGrad(0.0, rescale=True))[0], send(UPDATES)[0])


@pytest.mark.parametrize("c", [-0.1, 1.0, math.nan])
def test_refuses_what_is_out_of_range(c: float) -> None:
    with pytest.raises(ConfigurationError, match=rf"c must be in \[0, 1\), got {c}"):
        CAGrad(c)
