"""NashMTL by the equation of a bargain, G w = 1 / w."""

import math
from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close

from fl_lightning.callbacks import NashMTL


@pytest.mark.parametrize("degrees", [10, 90, 120, 179])
@pytest.mark.parametrize("lengths", [(1.0, 1.0), (2.0, 5.0), (1e-9, 1e9)])
def test_two_updates_meet_in_the_middle(degrees: float, lengths: tuple[float, float]) -> None:
    """a² w₁ + ab c w₂ = 1 / w₁ and its like give a w₁ = b w₂ = 1 / √(1 + c): a step of length √2 at θ/2."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    updates = [[lengths[0], 0.0], [lengths[1] * cosine, lengths[1] * sine]]
    step, capture = apply(updates, NashMTL(max_norm=9.0), samples=[1, 3])
    assert close(
        capture.cohort.weights * torch.tensor(lengths, dtype=torch.float64), [1 / math.sqrt(1 + cosine)] * 2, 1e-8
    )
    half = math.radians(degrees) / 2
    assert close(step, (math.sqrt(2) * math.cos(half), math.sqrt(2) * math.sin(half)), 1e-8)


@pytest.mark.parametrize(("size", "columns"), [(1, 2), (3, 3), (20, 25), (50, 1000)])
def test_the_bargain(size: int, columns: int) -> None:
    """Every w_i (G w)_i = 1, so that the step's length is √K; the product of gains falls in every direction around."""
    draw = torch.Generator().manual_seed(size)
    g = torch.randn(size, columns, generator=draw, dtype=torch.float64) * torch.logspace(-2, 2, size)[:, None]
    step, capture = apply(g, NashMTL(max_norm=100.0))
    assert close(capture.cohort.weights * (g @ step), torch.ones(size), 1e-9)
    assert float(step.norm()) == pytest.approx(math.sqrt(size))
    others = torch.nn.functional.normalize(step + 0.1 * torch.randn(100, columns, generator=draw, dtype=torch.float64))
    products = (others * math.sqrt(size) @ g.T).log().nan_to_num(-math.inf).sum(1)
    assert float(products.max()) <= float((g @ step).log().sum()) + 1e-12


def test_the_length_is_limited() -> None:
    assert float(apply([[2.0, 0.0], [0.0, 4.0]], NashMTL())[0].norm()) == pytest.approx(1.0)


@pytest.mark.parametrize("updates", [[[0.0, 0.0]] * 2, [[0.1, 0.7], [-0.3, -2.1]], UPDATES], ids=str)
def test_no_step_where_clients_do_not_agree(updates: Any) -> None:
    """Zero updates, opposite ones, and three around zero: 3 (2, 0) + 4 (-1, 1) + 2 (-1, -2) = 0."""
    assert close(apply(updates, NashMTL())[0], (0.0, 0.0), 0.0)


def test_equal_updates() -> None:
    """Both weigh the same, though G is singular; the direction is theirs."""
    assert close(apply([[3.0, 4.0]] * 2, NashMTL())[0], (0.6, 0.8))
