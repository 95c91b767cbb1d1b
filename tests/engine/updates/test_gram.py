"""Conflict measures by hand, and the K×K projections against the same algorithms on the updates themselves."""

import math
from itertools import product

import pytest
import torch
from lib.toy import UPDATES, close
from torch import Tensor

from fl_lightning.callbacks.server.gh import harmonize_in_turn
from fl_lightning.engine.updates.cohort import ClientResult, Cohort
from fl_lightning.engine.updates.gram import (
    angle,
    conflict_ratio,
    cosines,
    norms,
    pairs,
    project_conflicts,
    share_removed,
    without_rounding,
)

G = torch.tensor(UPDATES, dtype=torch.float64)
DEGENERATE = ["none", "zero", "all zero", "duplicate", "opposite", "parallel 1e-3", "parallel 1e-5", "parallel 1e-8"]
SIZES = [1, 2, 3, 7, 12]
SEEDS = range(2)
ORDERS = ["ascending", "descending", "random"]
D = 50


def updates(size: int, degenerate: str, seed: int) -> Tensor:
    """(K, 50) random updates of very different lengths, the last made degenerate."""
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(size, D, generator=generator, dtype=torch.float64)
    g = (g - g.mean(0) / 2) * torch.logspace(-2, 2, size, dtype=torch.float64)[:, None]
    if degenerate == "zero":
        g[-1] = 0
    elif degenerate == "all zero":
        g[:] = 0
    elif degenerate == "duplicate":
        g[-1] = g[0]
    elif degenerate == "opposite":
        g[-1] = -3 * g[0]
    elif degenerate.startswith("parallel"):
        noise = torch.randn(D, generator=generator, dtype=torch.float64)
        g[-1] = -g[0] + float(degenerate.split()[1]) * g[0].norm() * noise / noise.norm()
    return g


def partners(size: int, order: str) -> Tensor:
    """(K, K-1) the other clients in the order in which each client meets them."""
    others = [[j for j in range(size) if j != k] for k in range(size)]
    generator = torch.Generator().manual_seed(size)
    if order == "random":
        others = [[row[i] for i in torch.randperm(size - 1, generator=generator).tolist()] for row in others]
    rows = torch.tensor(others, dtype=torch.int64).reshape(size, size - 1)
    return rows.flip(1) if order == "descending" else rows


def paper_directly(g: Tensor, order: Tensor) -> Tensor:
    """FedGH, Algorithm 1, on the d-long updates: each g_k against the frozen others, in its order."""
    harmonised = g.clone()
    for k, row in enumerate(order.tolist()):
        for j in row:
            if j != k and (along := harmonised[k] @ g[j]) < 0:
                harmonised[k] -= along / (g[j] @ g[j]) * g[j]
    return harmonised


def slides_directly(g: Tensor, order: Tensor) -> Tensor:
    """FedGH's slides on the d-long updates: g_j as it stands; one that is cancelled to rounding has no direction."""
    harmonised = g.clone()
    for k, row in enumerate(order.tolist()):
        for j in row:
            square = harmonised[j] @ harmonised[j]
            if (along := harmonised[k] @ harmonised[j]) < 0 and square > 1e-7 * (g[j] @ g[j]):
                harmonised[k] -= along / square * harmonised[j]
    return harmonised


def gram_of(g: Tensor) -> Tensor:
    results = [ClientResult(k, 1, 1, 1.0, 1.0, [], {}) for k in range(len(g))]
    return Cohort.collect(1, torch.zeros(D), g, results).gram


def agree(actual: Tensor, expected: Tensor, g: Tensor) -> bool:
    """To 1e-9 of the longest update."""
    return close(actual, expected, 1e-9 * max(1.0, float(g.norm(dim=1).max())))


@pytest.mark.parametrize("degenerate", DEGENERATE)
def test_projections_equal_direct_ones(degenerate: str) -> None:
    """The paper's, against the original updates, and that of the slides, against the updates as they stand."""
    for size, order, seed in product(SIZES, ORDERS, SEEDS):
        g, rows = updates(size, degenerate, seed), partners(size, order)
        gram, which = gram_of(g), (size, order, seed)
        assert agree(project_conflicts(gram, rows) @ g, paper_directly(g, rows), g), which
        assert agree(harmonize_in_turn(gram, rows) @ g, slides_directly(g, rows), g), which


def test_projection_of_an_update_on_itself_is_skipped() -> None:
    """All three against g₃ = (-1, -2), ‖g₃‖² = 5: (2, 0) + 2/5 g₃, (-1, 1) + 1/5 g₃, g₃ itself."""
    mixing = project_conflicts(G @ G.T, torch.tensor([[2], [2], [2]]))
    assert close(mixing, [[1, 0, 0.4], [0, 1, 0.2], [0, 0, 1]])


def weights(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_conflict_ratio() -> None:
    """(2, 0), (-1, 1), (-1, -2): all three pairs; with (1, 2) in place of the last, one of three, the first two.

    λ = (4, 1, 2) / 7: 4 of 4 + 8 + 2; without a pair, 0.
    """
    turned = G * torch.tensor([[1.0], [1.0], [-1.0]], dtype=torch.float64)
    gram = turned @ turned.T
    assert conflict_ratio(G @ G.T) == 1.0
    assert conflict_ratio(gram) == pytest.approx(1 / 3)
    assert conflict_ratio(torch.eye(4)) == conflict_ratio(torch.ones(1, 1)) == 0.0
    assert conflict_ratio(gram, weights(4, 1, 2) / 7) == pytest.approx(2 / 7)
    assert conflict_ratio(gram, weights(0, 1, 2)) == 0.0
    assert conflict_ratio(G @ G.T, weights(0, 0, 1)) == 0.0
    assert conflict_ratio(gram, weights(0.2, 0.2, 0.2)) == pytest.approx(conflict_ratio(gram))


def test_norms_of_combinations() -> None:
    """g₁ + g₂ = (1, 1), 2 g₂ - g₃ = (-1, 4); g₁ + g₂ + g₃ less (0, -1), which is no combination of rounding, is 0."""
    combinations = torch.tensor([[1, 1, 0], [0, 2, -1], [0, 0, 0]], dtype=torch.float64)
    assert close(norms(G @ G.T, combinations), [2**0.5, 17**0.5, 0])
    third = torch.cat([G[:2], G[:1] / 3 + G[1:2] / 7])
    assert norms(third @ third.T, weights(1 / 3, 1 / 7, -1)[None]).tolist() == [0.0]


def test_share_removed() -> None:
    """g₁ less half of itself, g₂ turned round, g₃ kept: 0.5, 2, 0. Of a zero update there is no share."""
    mixing = torch.diag(weights(0.5, -1, 1))
    assert share_removed(G @ G.T, mixing).tolist() == pytest.approx([0.5, 2, 0])
    with_zero = torch.cat([G, torch.zeros(1, 2)])
    wider = torch.block_diag(mixing, weights(5)[None])
    assert share_removed(with_zero @ with_zero.T, wider).tolist() == pytest.approx([0.5, 2, 0, math.nan], nan_ok=True)
    assert share_removed(G @ G.T, torch.zeros(3, 3, dtype=torch.float64)).tolist() == pytest.approx([1, 1, 1])


def test_angle() -> None:
    """(2, 0) to (-2, -1): cosine -2/√5; to itself none, turned round 180. One of 1e-9 is more than rounding."""
    gram, one = G @ G.T, weights(1, 0, 0)
    assert angle(gram, one, weights(0, 1, 1)) == pytest.approx(180 - math.degrees(math.atan(0.5)))
    assert angle(gram, weights(0.3, 0.2, 0.5), weights(0.6, 0.4, 1.0)) == 0.0
    assert angle(gram, one, -3 * one) == 180.0
    assert angle(torch.eye(2, dtype=torch.float64), weights(1, 0), weights(1, 1e-9)) == pytest.approx(
        math.degrees(1e-9)
    )
    assert angle(gram, one, weights(0, 0, 0)) is None
    assert angle(torch.ones(2, 2, dtype=torch.float64), weights(1, -1), weights(1, 1)) is None


def test_cosines() -> None:
    """Products -2, -2, -1 over the norms 2, √2, √5; zero for a zero update, never outside [-1, 1]."""
    with_zero = torch.cat([G, torch.zeros(1, 2)])
    actual = cosines(with_zero @ with_zero.T)
    assert close(pairs(actual), [-(0.5**0.5), -(0.2**0.5), 0, -(0.1**0.5), 0, 0])
    assert close(actual.diagonal(), [1, 1, 1, 0])
    long = torch.full((2, 3), 0.1, dtype=torch.float64)
    assert float(cosines(long @ long.T * (1 + 1e-15)).max()) <= 1.0


def test_without_rounding() -> None:
    """Norms 1 and 2: -1e-12·2 could be rounding of an exact zero, -3e-12 could not."""
    gram = torch.tensor([[1.0, -2e-12], [-2e-12, 4.0]], dtype=torch.float64)
    assert close(without_rounding(gram, gram.diagonal().sqrt()), [[1, 0], [0, 4]], 0.0)
    gram[0, 1] = gram[1, 0] = -3e-12
    assert torch.equal(without_rounding(gram, gram.diagonal().sqrt()), gram)


def test_orthogonal_updates_do_not_conflict() -> None:
    """(0.1, 0.7, 0.8)·(1, 1, -1) = 0, in floating point -1e-16: exactly FedAvg all the same."""
    g = torch.tensor([[0.1, 0.7, 0.8], [1.1, 1.1, -1.1]], dtype=torch.float64)
    assert -1e-15 < float((g @ g.T)[0, 1]) < 0
    gram = gram_of(g)
    assert torch.equal(project_conflicts(gram, torch.tensor([[1], [0]])), torch.eye(2, dtype=torch.float64))
    assert conflict_ratio(gram) == 0.0
