"""FedFV on g₁ = (2, 0), g₂ = (-1, 1), g₃ = (-1, -2), by hand, over rounds, and against Algorithms 1 to 3 at length."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, Capture, close
from torch import Tensor

from fl_lightning.callbacks import FedAvg, FedFV, FedNova
from fl_lightning.callbacks.server.fedfv import fair_projection

RISING, FALLING, EQUAL = (0.5, 1.0, 2.0), (2.0, 1.0, 0.5), (1.0, 1.0, 1.0)  # the clients' losses
G1, G2, G3 = torch.tensor(UPDATES, dtype=torch.float64)  # ‖g‖² = 4, 2, 5; g₁·g₂ = g₁·g₃ = -2, g₂·g₃ = -1
# An update meets the others from the smallest loss to the largest: an h in conflict with g becomes h + (-h·g)/‖g‖² g.
RISING_1 = G1 + 2 / 2 * G2 + 3 / 5 * G3  # off g₂: (1, 1), whose product with g₃ is -3; off g₃: (0.4, -0.2)
RISING_2 = G2 + 2 / 4 * G1 + 2 / 5 * G3  # off g₁: (0, 1), whose product with g₃ is -2; off g₃: (-0.4, 0.2)
RISING_3 = G3 + 2 / 4 * G1 + 2 / 2 * G2  # off g₁: (0, -2), whose product with g₂ is -2; off g₂: (-1, -1)
FALLING_2 = G2 + 1 / 5 * G3 + 2.4 / 4 * G1  # off g₃: (-1.2, 0.6), whose product with g₁ is -2.4; off g₁: (0, 0.6)
FALLING_3 = G3 + 1 / 2 * G2 + 3 / 4 * G1  # off g₂: (-1.5, -1.5), whose product with g₁ is -3; off g₁: (0, -1.5)


@pytest.mark.parametrize(
    ("losses", "alpha", "projected", "by_hand"),
    [
        (RISING, 0.1, (RISING_1, RISING_2, G3), (-1.0, -2.0)),  # of places 0, 1, 2, place ⌈2 · 0.9⌉ = 2 is kept
        (RISING, 0.0, (RISING_1, RISING_2, RISING_3), (-1.0, -1.0)),  # none is kept
        (RISING, 0.5, (RISING_1, G2, G3), (-1.6, -1.2)),  # places ⌈2 · 0.5⌉ = 1 and 2 are kept
        (FALLING, 0.1, (G1, FALLING_2, FALLING_3), (2.0, -0.9)),
        (EQUAL, 0.1, (RISING_1, RISING_2, G3), (-1.0, -2.0)),  # equal losses are ordered by client
    ],
)
def test_internal_conflicts(losses: Any, alpha: float, projected: Any, by_hand: Any) -> None:
    """Keep the updates of the largest losses, project the others, and restore the length of the mean update."""
    direction = projected[0] + projected[1] + projected[2]
    assert close(direction, by_hand)
    length = ((G1 + G2 + G3) / 3).norm()
    assert float(length) == pytest.approx(1 / 3, abs=1e-12)  # by hand: the mean is (0, -1/3)
    scale = length / (direction / 3).norm()
    model, capture = apply(UPDATES, FedFV(alpha, tau=0), samples=[1, 1, 2], losses=losses)
    assert close(model, scale * direction / 3)
    assert close(capture.corrected, scale * torch.stack(projected))
    assert close(capture.cohort.weights, [1 / 3] * 3)  # whatever the numbers of samples


@pytest.mark.parametrize("losses", [(0.5, 1.0, math.nan), (math.nan, 1.0, 0.5)], ids=str)
def test_a_client_without_a_loss_counts_as_the_largest(losses: tuple[float, ...]) -> None:
    g = torch.tensor(UPDATES, dtype=torch.float64)
    known = torch.tensor([9.0 if math.isnan(loss) else loss for loss in losses])
    assert torch.equal(fair_projection(g @ g.T, torch.tensor(losses), 0.1), fair_projection(g @ g.T, known, 0.1))


def test_share_that_is_no_binary_fraction() -> None:
    """K = 11, α = 0.7: 10 · (1 - α) is 3, not 3.000…04: three are projected, eight keep their update."""
    draw = torch.Generator().manual_seed(0)
    g = torch.randn(11, 3, generator=draw, dtype=torch.float64)
    projection = fair_projection(g @ g.T, torch.arange(11.0), 0.7)
    assert ((projection != 0).sum(1) > 1).nonzero().flatten().tolist() == [0, 1, 2]


def test_conflicts_with_this_round() -> None:
    """τ = 1, losses rising: the running step is along (-1, -2), in conflict with g₁ (-2) and g₂ (-1), not g₃ (5).

    c = g₁ + g₂ = (1, 1); (-1, -2) + 3/2 (1, 1) = (0.5, -0.5). Its length is again 1/3.
    """
    model, _ = apply(UPDATES, FedFV(), samples=[1, 1, 2], losses=RISING)
    assert close(model, (math.sqrt(0.5) / 3, -math.sqrt(0.5) / 3))


def rounds(updates: Any, rule: FedFV, *cohorts: list[int], losses: Any = None) -> tuple[list[Tensor], Capture]:
    """The step of each round with a given cohort, and what was seen."""
    model, capture = apply(updates, rule, cohorts=cohorts, losses=losses)
    models = [cohort.anchor for cohort in capture.cohorts] + [model]
    return [after - before for before, after in pairwise(models)], capture


def test_rounds_that_are_too_long_ago_and_clients_that_came_back() -> None:
    """Round 3 of τ = 2 sees rounds 2 and 3: nothing of (2, 0), sent in round 1; so (-1, 1) stays as it is.

    Where client 0 takes part in round 2 as well, (2, 0) is one round ago and (-1, 1) becomes (0, √2).
    """
    updates = [[2.0, 0.0], [-1.0, 1.0], [0.0, 1.0]]
    assert close(rounds(updates, FedFV(tau=2), [0], [2], [1])[0][2], (-1.0, 1.0))
    assert close(rounds(updates, FedFV(tau=2), [0], [0], [1])[0][2], (0.0, math.sqrt(2)))
    assert close(rounds(updates, FedFV(tau=3), [0], [2], [1])[0][2], (0.0, math.sqrt(2)))


def test_keeps_no_more_than_the_next_round_needs() -> None:
    """After rounds {0, 1}, {1, 2}, {3}: with τ = 3 those of age 0 and 1; with τ = 1 nothing."""
    cohorts = [[0, 1], [1, 2], [3]]
    long, short = FedFV(tau=3), FedFV(tau=1)
    rounds(torch.eye(4), long, *cohorts)
    assert sorted(long.state) == ["1/2", "2/2", "3/3"]
    assert close(long.state["2/2"], (0.0, 0.0, 1.0, 0.0))
    rounds(torch.eye(4), short, *cohorts)
    assert not short.state


def published(updates: Tensor, losses: list[Tensor], cohorts: list[list[int]], alpha: float, tau: int) -> list[Tensor]:
    """Each round's step by Algorithms 1 to 3, on the vectors themselves, with the length restored once, at the end."""
    steps: list[Tensor] = []
    sent: dict[int, int] = {}
    for t, cohort in enumerate(cohorts, 1):
        order = [cohort[i] for i in losses[t - 1].argsort(stable=True)]
        kept = order[math.ceil((len(order) - 1) * (1 - alpha)) :] if alpha > 0 else []
        projected = []
        for i in cohort:
            g = updates[i].clone()
            for j in [j for j in order if j != i and i not in kept]:
                g -= min(float(g @ updates[j]), 0.0) / updates[j].square().sum() * updates[j]
            projected.append(g)
        step = torch.stack(projected).mean(0)
        sent |= dict.fromkeys(cohort, t)
        for lag in range(tau - 1, -1, -1) if t >= tau else ():
            conflicting = [updates[k] for k in sorted(sent) if sent[k] == t - lag and updates[k] @ step < 0]
            if conflicting:
                c = torch.stack(conflicting).sum(0)
                step = step - min(float(step @ c), 0.0) / c.square().sum() * c
        steps.append(step / step.norm() * updates[cohort].mean(0).norm())
    return steps


@pytest.mark.parametrize("tau", [0, 1, 2, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.4, 1.0])
def test_equals_the_published_algorithm(alpha: float, tau: int) -> None:
    draw = torch.Generator().manual_seed(7)
    updates = torch.randn(8, 5, generator=draw, dtype=torch.float64)
    cohorts = [torch.randperm(8, generator=draw)[:4].sort().values.tolist() for _ in range(6)]
    steps, capture = rounds(updates, FedFV(alpha, tau), *cohorts, losses=torch.rand(8, generator=draw).tolist())
    losses = [cohort.losses for cohort in capture.cohorts]
    for step, expected in zip(steps, published(updates, losses, cohorts, alpha, tau), strict=True):
        assert close(step, expected)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_no_conflict_is_exactly_the_uniform_average(alpha: float) -> None:
    updates = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]
    average = apply(updates, FedAvg("uniform"), samples=[1, 1, 2])[0]
    assert torch.equal(apply(updates, FedFV(alpha), samples=[1, 1, 2])[0], average)


def test_zero_updates() -> None:
    """Alone they move nothing. Beside (2, 0) and (-1, 1), which become (1, 1) and (0, 1), one is no partner.

    Mean (1, 2)/3, of the length of (1, 1)/3. α = 0 keeps none; no product with (1, 2) is negative.
    """
    assert close(apply([[0.0, 0.0]] * 2, FedFV())[0], (0.0, 0.0), 0.0)
    model, _ = apply([[2.0, 0.0], [0.0, 0.0], [-1.0, 1.0]], FedFV(alpha=0.0))
    assert close(model, (math.sqrt(2 / 5) / 3, 2 * math.sqrt(2 / 5) / 3))


def test_opposite_updates_vanish() -> None:
    """Each is projected off the other; what rounding leaves is no direction to be made long again."""
    assert close(apply([[0.1, 0.3, -0.3], [-0.3, -0.9, 0.9]], FedFV(alpha=0.0))[0], (0.0, 0.0, 0.0), 0.0)
    for tenths in torch.cartesian_prod(torch.arange(1, 10), torch.arange(1, 10)).double():
        g = torch.stack([tenths / 10, -0.3 * tenths])
        assert not fair_projection(g @ g.T, torch.zeros(2), 0.0).any()


def test_a_step_that_past_updates_cancel_stays_zero() -> None:
    """(0.1, 0.7), then -3 times as much of another client: nothing is left."""
    steps, _ = rounds([[0.1, 0.7], [-0.3, -2.1]], FedFV(tau=2), [0], [1])
    assert close(steps[1], (0.0, 0.0), 0.0)


def test_works_on_the_updates_so_far() -> None:
    """FedNova, τ_k = (1, 2, 3) steps, n equal: times (2, 1, 2/3) the updates are (4, 0), (-1, 1), (-2, -4)/3.

    Internal conflicts do not depend on lengths. g₁ becomes 2 (0.4, -0.2), g₂ (-0.4, 0.2), g₃ is kept: the sum is
    (0.4, -0.2) + (-2/3, -4/3) = (-4, -23)/15; the mean before is (7, -1)/9. For τ = 0.
    """
    model, _ = apply(UPDATES, FedNova(), FedFV(tau=0), steps=[1, 2, 3], losses=RISING)
    length = math.sqrt(50) / 9
    assert close(model, (-4 * length / math.sqrt(545), -23 * length / math.sqrt(545)))
