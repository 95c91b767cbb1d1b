"""Dominant gradient correction of g₁ = (2, 0), g₂ = (-1, 1), g₃ = (-1, -2), by hand."""

import math
from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close

from fl_lightning.callbacks import DominantGradientCorrection, GradientHarmonization
from fl_lightning.callbacks.server.dgc import dominant_updates

GRAM = torch.tensor([[4.0, -2.0, -2.0], [-2.0, 2.0, -1.0], [-2.0, -1.0, 5.0]], dtype=torch.float64)
# p_i = ‖g_i‖ + Σ_{j≠i} (g_i·g_j)(1/‖g_i‖ + 1/‖g_j‖)/2, with the norms 2, √2, √5
P12, P13, P23 = -(0.5 + math.sqrt(0.5)), -(0.5 + math.sqrt(0.2)), -(math.sqrt(0.5) + math.sqrt(0.2)) / 2
P = (2 + P12 + P13, math.sqrt(2) + P12 + P23, math.sqrt(5) + P13 + P23)


def dominant(losses: Any, ratio: float, gram: torch.Tensor = GRAM) -> list[int]:
    return dominant_updates(gram, torch.tensor(losses, dtype=torch.float64), ratio).tolist()


def test_projections_by_hand() -> None:
    """What the other tests build on: p = (-0.1543203767, -0.3700534072, 0.7116941937)."""
    assert close(torch.tensor(P, dtype=torch.float64), (-0.1543203767, -0.3700534072, 0.7116941937), 1e-10)


@pytest.mark.parametrize(("ratio", "expected"), [(0.3, [2]), (0.5, [2, 0]), (1.0, [2, 0, 1])])
def test_dominant_updates(ratio: float, expected: list[int]) -> None:
    """L = (0.5, 1, 2): z = p/l = (-0.3086, -0.3701, 0.3558), so 2 before 0 before 1; ⌈0.9⌉ = 1, ⌈1.5⌉ = 2, 3."""
    assert dominant([0.5, 1.0, 2.0], ratio) == expected


@pytest.mark.parametrize(("shift", "expected"), [(1 - 1e-9, [2, 1, 0]), (1 + 1e-9, [2, 0, 1])])
def test_rank_is_projection_over_loss_to_nine_digits(shift: float, expected: list[int]) -> None:
    """z₁ = z₂ where l₁/l₂ = p₁/p₂ = 0.4170219; p < 0, so a smaller l₁ ranks update 1 lower."""
    assert dominant([P[0] / P[1] * shift, 1.0, 1.0], 1.0) == expected


@pytest.mark.parametrize(
    ("ratio", "by_hand"), [(0.3, (-0.2, -2.2 / 3)), (0.5, (1.6 / 3, -2.2 / 3)), (1.0, (-0.2, 0.0))], ids=str
)
def test_three_updates_in_conflict(ratio: float, by_hand: tuple[float, float]) -> None:
    """Project three updates off g₃, then off g₁, then off g₂, as the ratio λ makes one, two or three dominant."""
    g1, g2, g3 = torch.tensor(UPDATES, dtype=torch.float64)  # ‖g‖² = 4, 2, 5; products with g₃: g₁ -2, g₂ -1
    off_3 = (g1 + 2 / 5 * g3, g2 + 1 / 5 * g3, g3)  # (1.6, -0.8), (-1.2, 0.6), (-1, -2)
    h1, h2, h3 = off_3  # products with g₁: h₂ -2.4, h₃ -2
    off_31 = (h1, h2 + 2.4 / 4 * g1, h3 + 2 / 4 * g1)  # (1.6, -0.8), (0, 0.6), (0, -2)
    h1, h2, h3 = off_31  # products with g₂: h₁ -2.4, h₃ -2
    off_312 = (h1 + 2.4 / 2 * g2, h2, h3 + 2 / 2 * g2)  # (0.4, 0.4), (0, 0.6), (-1, -1)
    first, second, third = {0.3: off_3, 0.5: off_31, 1.0: off_312}[ratio]
    mean = (first + second + third) / 3  # the numbers of samples, (1, 1, 2), do not count
    assert close(mean, by_hand)
    model, _ = apply(UPDATES, DominantGradientCorrection(ratio), losses=[0.5, 1.0, 2.0], samples=[1, 1, 2])
    assert close(model, mean)


def test_ranks_updates_as_the_rule_before_left_them() -> None:
    """After harmonization in ascending order: (0.4, -0.2), (-0.4, 0.2), (-1, -1), products (-0.2, -0.2, 0.2).

    Norms a, a, b with a² = 0.2, b² = 2. p₁ = a - 0.2/a - 0.1(1/a + 1/b) = -0.294, p₂ = +0.294, p₃ = b: with equal
    losses update 3 is dominant. Only update 1 conflicts with it: (0.4, -0.2) + 0.1 (-1, -1) = (0.3, -0.3).
    """
    rules = GradientHarmonization(order="ascending"), DominantGradientCorrection(0.3)
    model, capture = apply(UPDATES, *rules, losses=[1.0, 1.0, 1.0])
    assert close(capture.corrected, ((0.3, -0.3), (-0.4, 0.2), (-1.0, -1.0)))
    assert close(model, (-1.1 / 3, -1.1 / 3))


@pytest.mark.parametrize(
    ("ratio", "size", "count"), [(0.07, 100, 7), (0.29, 100, 29), (0.1, 30, 3), (0.3, 10, 3), (0.01, 7, 1), (1.0, 9, 9)]
)
def test_ceiling_does_not_round_up_what_is_whole(ratio: float, size: int, count: int) -> None:
    """0.07 · 100 is 7.000000000000001 in floating point. All z are equal: the first clients are dominant."""
    assert dominant([1.0] * size, ratio, torch.eye(size, dtype=torch.float64)) == list(range(count))


@pytest.mark.parametrize("seed", range(5))
def test_ties_go_to_the_lower_client(seed: int) -> None:
    """Updates (a, b, c), (b, c, a), (c, a, b) have the same norm and the same products: p is equal for all three.

    Rounding sums it up in another order for each, which must not decide.
    """
    a, b, c = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()
    updates = torch.tensor([[a, b, c], [b, c, a], [c, a, b]], dtype=torch.float64)
    assert dominant([1.0, 1.0, 1.0], 0.3, updates @ updates.T) == [0]


def test_zero_loss_and_zero_update() -> None:
    """A client that fits its data has the largest rank if p > 0; a zero update projects to nothing, z = 0."""
    gram = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert dominant([1.0, 0.0, 0.0], 1.0, gram) == [1, 0, 2]
    model, _ = apply([[2.0, 0.0], [0.0, 0.0], [-1.0, 1.0]], DominantGradientCorrection(1.0), losses=[0.0, 0.0, 1.0])
    assert close(model, (1 / 3, 2 / 3))  # (2, 0) + (-1, 1) = (1, 1), (0, 0), (-1, 1) + 1/2 (2, 0) = (0, 1)


def test_a_client_that_took_no_step_is_never_dominant() -> None:
    """Client 0: zero update, no loss (nan), so z = 0. The others: g = (1, 0) and (2, 0), p = 1 + 1.5 and 2 + 1.5,
    l = (1, 2): z = (0, 2.5, 1.75).
    """
    gram = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 2.0, 4.0]], dtype=torch.float64)
    assert dominant([math.nan, 1.0, 2.0], 1.0, gram) == [1, 2, 0]
