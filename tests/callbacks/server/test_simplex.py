"""Convex functions over the simplex, by hand and by the bound that the gradient gives."""

from collections.abc import Callable

import pytest
import torch
from lib.toy import close
from torch import Tensor

from fl_lightning.callbacks.server.simplex import minimize_on_simplex, onto_simplex

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def quadratic(gram: Tensor) -> Objective:
    """wᵀGw / 2."""
    return lambda w: (w @ gram @ w / 2, gram @ w)


def linear(slope: Tensor) -> Objective:
    return lambda w: (slope @ w, slope)


def solve(objective: Objective, size: int, lower: Tensor | float = 0.0, upper: Tensor | float = 1.0) -> Tensor:
    """From equal weights."""
    start = torch.full((size,), 1 / size, dtype=torch.float64)
    return minimize_on_simplex(objective, start, torch.ones_like(start) * lower, torch.ones_like(start) * upper)


@pytest.mark.parametrize(
    ("diagonal", "lower", "upper", "expected"),
    [
        ((1, 4), 0.0, 1.0, (0.8, 0.2)),
        ((1, 4), 0.0, 0.6, (0.6, 0.4)),
        ((1, 4), 0.3, 1.0, (0.7, 0.3)),
        ((1, 2, 4), 0.0, 1.0, (4 / 7, 2 / 7, 1 / 7)),
        ((1, 2, 4), 0.0, 0.4, (0.4, 0.4, 0.2)),
        ((1, 2, 4), 0.3, 1.0, (0.4, 0.3, 0.3)),
    ],
    ids=str,
)
def test_diagonal_quadratic(diagonal: tuple[float, ...], lower: float, upper: float, expected: object) -> None:
    """Σ d_k w_k² / 2 is smallest where d_k w_k is the same for all: w_k ∝ 1/d_k = (1, 1/4) or (4, 2, 1)/4.

    At most 0.6 of two: the rest to the other. At most 0.4 of three: w₁ = 0.4 and 0.6 shared 2 : 1. At least 0.3 of
    three: w₃ = 0.3, and 0.7 shared 2 : 1 would leave 0.23 to w₂, so it is 0.3, too.
    """
    assert close(solve(quadratic(torch.diag(vector(*diagonal))), len(diagonal), lower, upper), expected, 1e-7)


@pytest.mark.parametrize(("upper", "expected"), [(1.0, (0, 1, 0)), (0.5, (0, 0.5, 0.5)), (0.4, (0.2, 0.4, 0.4))])
def test_linear_function_goes_to_a_corner(upper: float, expected: object) -> None:
    """3 w₁ + w₂ + 2 w₃: as much as may be of w₂, then of w₃."""
    assert close(solve(linear(vector(3, 1, 2)), 3, upper=upper), expected)


def test_minimum_in_a_kink() -> None:
    """|w₁ - 2 w₂| is 0 at (2/3, 1/3), where it has no gradient."""

    def objective(w: Tensor) -> tuple[Tensor, Tensor]:
        value = w @ vector(1, -2)
        return value.abs(), value.sign() * vector(1, -2)

    assert close(solve(objective, 2), (2 / 3, 1 / 3), 1e-7)


@pytest.mark.parametrize("size", [1, 4])
def test_nothing_to_gain_leaves_the_start_as_it_is(size: int) -> None:
    """A constant, a function that is nan, and bounds that leave no room."""
    start = torch.arange(1, size + 1, dtype=torch.float64) / (size * (size + 1) / 2)
    zeros, ones = torch.zeros_like(start), torch.ones_like(start)
    for objective in linear(zeros), linear(ones * torch.nan):
        assert torch.equal(minimize_on_simplex(objective, start, zeros, ones), start)
    assert torch.equal(minimize_on_simplex(linear(-start), start, start, start), start)


@pytest.mark.parametrize("columns", [2, 1000])
@pytest.mark.parametrize("size", [2, 5, 20])
def test_random_quadratics(size: int, columns: int) -> None:
    """As f is convex, f(w) - f(v) <= ∇f(w)·(w - v) for all v; the bound's largest value is that at a corner."""
    draw = torch.Generator().manual_seed(size)
    for _ in range(5):
        rows = torch.nn.functional.normalize(torch.randn(size, columns, generator=draw, dtype=torch.float64))
        objective = quadratic(rows @ rows.T)
        found = solve(objective, size)
        assert float(found.min()) >= 0
        assert float(found.max()) <= 1
        assert float(found.sum()) == pytest.approx(1, abs=1e-15)
        value, gradient = objective(found)
        assert float(gradient @ found - gradient.min()) <= 1e-7
        assert value <= objective(torch.full((size,), 1 / size, dtype=torch.float64))[0]
        assert torch.equal(solve(objective, size), found)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((0.4, 0.7, -0.1), (0.4, 0.6, 0.0)), ((0.4, 0.6, 0.2), (0.3, 0.5, 0.2)), ((0.3, 0.3, 0.2), (0.36, 0.36, 0.28))],
    ids=str,
)
def test_repairs_what_misses_the_constraints(weights: tuple[float, ...], expected: object) -> None:
    """Between (0.2, 0.4, 0.2) or (0, 0, 0), and (0.6, 0.6, 0.6).

    First: clipped to (0.4, 0.6, 0), which sums to one. Second: 0.2 too much, the room below is (0.2, 0.2, 0): half
    of it each. Third: 0.2 missing, the room above (0.3, 0.3, 0.4): a fifth of it each.
    """
    lower = vector(0.2, 0.4, 0.2) if weights == (0.4, 0.6, 0.2) else vector(0, 0, 0)
    assert close(onto_simplex(vector(*weights), lower, vector(0.6, 0.6, 0.6)), expected, 1e-15)
