"""FairGrad by its equation, by hand on two updates, and against TorchJD's least squares."""

from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close
from torchjd.aggregation import FairGradWeighting

from fl_lightning.callbacks import FairGrad
from fl_lightning.callbacks.server.fairgrad import fair_weights

ALPHAS = [0.5, 0.9, 1.0, 2.0, 5.0, 10.0]
APART = [[3.0, 1.0], [1.0, 2.0], [0.0, 4.0]]


def drawn(size: int, columns: int, spread: float) -> Any:
    draw = torch.Generator().manual_seed(size)
    lengths = torch.logspace(-spread, spread, size)[:, None]
    return torch.randn(size, columns, generator=draw, dtype=torch.float64) * lengths


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("size", "columns"), [(1, 1), (2, 2), (3, 3), (5, 40), (20, 25), (50, 1000)])
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_the_equation(alpha: float, size: int, columns: int, spread: float) -> None:
    """w_i (G w)_i^α = 1 with w > 0, also of updates of which the largest is 10⁴ times as long as the smallest."""
    g = drawn(size, columns, spread)
    weights = fair_weights(g @ g.T, alpha)
    assert float(weights.min()) > 0
    assert close((g @ (g.T @ weights)) ** alpha * weights, torch.ones(size), 1e-8)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_orthogonal_updates(alpha: float) -> None:
    """‖g_i‖² w_i = w_i^(-1/α), so that w_i = ‖g_i‖^(-2α/(1+α))."""
    power = -2 * alpha / (1 + alpha)
    weights = fair_weights(torch.tensor([4.0, 16.0, 1e-6], dtype=torch.float64).diag(), alpha)
    assert close(weights / weights.new_tensor([2.0**power, 4.0**power, 1e-3**power]), (1.0, 1.0, 1.0))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("cosine", [-0.999, -0.5, 0.0, 0.9, 1.0])
def test_two_unit_updates(alpha: float, cosine: float) -> None:
    """Both have the same w with (1 + c) w = w^(-1/α): w = (1 + c)^(-α/(1+α)). c = 1 is a singular G."""
    weights = fair_weights(torch.tensor([[1.0, cosine], [cosine, 1.0]], dtype=torch.float64), alpha)
    assert close(weights * (1 + cosine) ** (alpha / (1 + alpha)), (1.0, 1.0))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_the_least_squares_of_torchjd(alpha: float) -> None:
    for updates in (APART, UPDATES[:2], drawn(5, 40, 0.0).tolist()):
        g = torch.tensor(updates, dtype=torch.float64)
        theirs = FairGradWeighting(alpha)(g @ g.T)
        assert close(fair_weights(g @ g.T, alpha), theirs, 1e-4)
        assert not close(fair_weights(g @ g.T, alpha + 0.3), theirs, 1e-3)


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_no_other_direction_is_fairer(alpha: float) -> None:
    """Σ gain^(1-α) / (1-α) over directions of one length is largest along the step; 1000 directions near it show it."""
    g = torch.tensor(APART, dtype=torch.float64)
    step = g.T @ fair_weights(g @ g.T, alpha)
    noise = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    others = step / step.norm() + 0.05 * noise
    gains = torch.nn.functional.normalize(torch.cat([step[None], others])) @ g.T
    fairness = (gains ** (1 - alpha) / (1 - alpha)).sum(1)
    assert float(fairness[1:].max()) <= float(fairness[0])


def test_a_large_alpha_serves_the_worst() -> None:
    """The gains of (2, 0) and (0, 1) are w^(-1/α), whose ratio 2^(2/(1+α)) nears 1 where α grows."""
    for alpha in (1.0, 3.0, 9.0):
        step, _ = apply([[2.0, 0.0], [0.0, 1.0]], FairGrad(alpha))
        assert float(2 * step[0] / step[1]) == pytest.approx(2 ** (2 / (1 + alpha)))


def test_the_length_is_limited() -> None:
    """(2, 0), (0, 4) by (1/2, 1/4) give (1, 1), √2 long; with a limit of 1, a step of length 1."""
    assert close(apply([[2.0, 0.0], [0.0, 4.0]], FairGrad(max_norm=2.0))[0], (1.0, 1.0))
    assert close(apply([[2.0, 0.0], [0.0, 4.0]], FairGrad())[0], (0.5**0.5, 0.5**0.5))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_common_scale(alpha: float, scale: float) -> None:
    """The step is multiplied by c^((1-α)/(1+α)), in every direction alike."""
    g = torch.tensor(APART, dtype=torch.float64)
    step, scaled = (f * g.T @ fair_weights(f * f * g @ g.T, alpha) for f in (1.0, scale))
    assert close(scaled / scale ** ((1 - alpha) / (1 + alpha)), step)


@pytest.mark.parametrize("updates", [[[0.0, 0.0]] * 3, [[0.1, 0.7], [-0.3, -2.1]], UPDATES], ids=str)
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 10.0])
def test_no_step_where_none_helps_all(updates: Any, alpha: float) -> None:
    """Zero updates, opposite ones, and three around zero: 3 (2, 0) + 4 (-1, 1) + 2 (-1, -2) = 0."""
    assert close(apply(updates, FairGrad(alpha))[0], (0.0, 0.0), 0.0)


def test_a_zero_update_beside_others() -> None:
    """(0, 0) can gain nothing: (2, 0) and (0, 4) share as without it."""
    _, capture = apply([[2.0, 0.0], [0.0, 0.0], [0.0, 4.0]], FairGrad(max_norm=9.0))
    assert close(capture.cohort.weights, (0.5, 0.0, 0.25))


def test_equal_updates_share_a_weight() -> None:
    """K w ‖g‖² = 1 / w: w = 1 / √50 for two of (3, 4), which make a step of length √2."""
    _, capture = apply([[3.0, 4.0]] * 2, FairGrad(max_norm=9.0))
    assert close(capture.cohort.weights, [50**-0.5] * 2)
