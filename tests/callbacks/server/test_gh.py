"""Gradient harmonization of g₁ = (2, 0), g₂ = (-1, 1), g₃ = (-1, -2), by hand, and its properties."""

from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.rules import run
from lib.toy import UPDATES, close
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import ConflictMonitor, FedAvg, FedNova, GradientHarmonization, Krum

G1, G2, G3 = torch.tensor(UPDATES, dtype=torch.float64)  # ‖g‖² = 4, 2, 5; g₁·g₂ = g₁·g₃ = -2, g₂·g₃ = -1
# An update h that conflicts with g becomes h + (-h·g)/‖g‖² g. The paper projects off the updates as sent.
PAPER_ASCENDING = (
    G1 + 2 / 2 * G2 + 3 / 5 * G3,  # off g₂: (1, 1), whose product with g₃ is -3; off g₃: (0.4, -0.2)
    G2 + 2 / 4 * G1 + 2 / 5 * G3,  # off g₁: (0, 1), whose product with g₃ is -2; off g₃: (-0.4, 0.2)
    G3 + 2 / 4 * G1 + 2 / 2 * G2,  # off g₁: (0, -2), whose product with g₂ is -2; off g₂: (-1, -1)
)
PAPER_DESCENDING = (
    G1 + 2 / 5 * G3 + 2.4 / 2 * G2,  # off g₃: (1.6, -0.8), whose product with g₂ is -2.4; off g₂: (0.4, 0.4)
    G2 + 1 / 5 * G3 + 2.4 / 4 * G1,  # off g₃: (-1.2, 0.6), whose product with g₁ is -2.4; off g₁: (0, 0.6)
    G3 + 1 / 2 * G2 + 3 / 4 * G1,  # off g₂: (-1.5, -1.5), whose product with g₁ is -3; off g₁: (0, -1.5)
)
# The slides project off the updates as harmonised so far. Their first update u₁ or d₁ is the paper's.
UP_1 = PAPER_ASCENDING[0]  # ‖u₁‖² = 0.2, u₁·g₂ = -0.6, u₁·g₃ = 0
UP_2 = G2 + 0.6 / 0.2 * UP_1 + 1 / 5 * G3  # off u₁: (0.2, 0.4), whose product with g₃ is -1; off g₃: (0, 0)
SLIDES_ASCENDING = (UP_1, UP_2, G3)  # g₃ conflicts with neither u₁ nor u₂
DOWN_1 = PAPER_DESCENDING[0]  # ‖d₁‖² = 0.32
DOWN_2 = G2 + 1 / 5 * G3 + 0.24 / 0.32 * DOWN_1  # off g₃: (-1.2, 0.6), with product -0.24 with d₁; off d₁: (-0.9, 0.9)
DOWN_3 = G3 + 0.9 / 1.62 * DOWN_2 + 1.2 / 0.32 * DOWN_1  # off d₂: (-1.5, -1.5), with product -1.2 with d₁; off d₁: 0
SLIDES_DESCENDING = (DOWN_1, DOWN_2, DOWN_3)
BY_SAMPLES, EVEN = (1 / 4, 1 / 4, 2 / 4), (1 / 3, 1 / 3, 1 / 3)


@pytest.mark.parametrize(
    ("rules", "harmonised", "weights", "by_hand"),
    [
        ([GradientHarmonization(order="ascending")], PAPER_ASCENDING, BY_SAMPLES, (-0.5, -0.5)),
        ([FedAvg("uniform"), GradientHarmonization(order="ascending")], PAPER_ASCENDING, EVEN, (-1 / 3, -1 / 3)),
        ([GradientHarmonization(order="descending")], PAPER_DESCENDING, BY_SAMPLES, (0.1, -0.5)),
        ([FedAvg("uniform"), GradientHarmonization(order="descending")], PAPER_DESCENDING, EVEN, (0.4 / 3, -0.5 / 3)),
        ([GradientHarmonization("slides", "ascending")], SLIDES_ASCENDING, EVEN, (-0.2, -2.2 / 3)),
        ([GradientHarmonization("slides", "descending")], SLIDES_DESCENDING, EVEN, (-0.5 / 3, 1.3 / 3)),
    ],
)
def test_three_updates_in_conflict(rules: list[Any], harmonised: Any, weights: Any, by_hand: Any) -> None:
    """Harmonise three updates, all in conflict, by both variants in both orders."""
    first, second, third = harmonised
    mean = weights[0] * first + weights[1] * second + weights[2] * third
    assert close(mean, by_hand)
    model, capture = apply(UPDATES, *rules, samples=[1, 1, 2])
    assert close(capture.corrected, torch.stack(harmonised))
    assert close(model, mean)


@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
@pytest.mark.parametrize("variant", ["paper", "slides"])
def test_no_conflict_is_exactly_fedavg(variant: Any, order: Any) -> None:
    """(1, 0), (0, 2) are orthogonal, (1, 1) agrees with both."""
    updates = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]
    weighting: Any = "samples" if variant == "paper" else "uniform"
    average = apply(updates, FedAvg(weighting), samples=[1, 1, 2])[0]
    assert torch.equal(apply(updates, GradientHarmonization(variant, order), samples=[1, 1, 2])[0], average)


@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
@pytest.mark.parametrize("client", [0, 1, 2])
@pytest.mark.parametrize("variant", ["paper", "slides"])
def test_scaling_an_update_scales_only_its_own_harmonised_update(variant: Any, client: int, order: Any) -> None:
    scales = torch.ones(3, 1, dtype=torch.float64)
    scales[client] = 7.5
    rule = GradientHarmonization(variant, order)
    plain = apply(UPDATES, rule)[1].corrected
    assert close(apply(torch.tensor(UPDATES) * scales, rule)[1].corrected, scales * plain)


@pytest.mark.parametrize("reverse", [False, True])
def test_commutes_with_fednova(reverse: bool) -> None:
    """N = (1, 1, 2), τ = (1, 2, 3): τ_eff = 0.25 + 0.5 + 1.5 = 2.25.

    2.25·((0.4, -0.2)/4 + (-0.4, 0.2)/8 + (-1, -1)/6) = 2.25·(0.05 - 1/6, -0.025 - 1/6).
    """
    rules = [FedNova(), GradientHarmonization(order="ascending")]
    model, _ = apply(UPDATES, *(rules[::-1] if reverse else rules), samples=[1, 1, 2], steps=[1, 2, 3])
    assert close(model, (2.25 * (0.05 - 1 / 6), 2.25 * (-0.025 - 1 / 6)))


def test_opposite_updates_vanish() -> None:
    """Each is projected off the other: nothing is left of either, and no direction comes of rounding."""
    updates = torch.tensor([[0.1, 0.7, -0.3], [-0.3, -2.1, 0.9]], dtype=torch.float64)
    assert close(apply(updates, GradientHarmonization(order="ascending"))[0], (0.0, 0.0, 0.0), 1e-15)


def test_zero_update_is_no_partner() -> None:
    """(0, 0) has no direction; (2, 0) and (-1, 1) become (1, 1) and (0, 1)."""
    _, capture = apply([[2.0, 0.0], [0.0, 0.0], [-1.0, 1.0]], GradientHarmonization(order="ascending"))
    assert close(capture.corrected, ((1.0, 1.0), (0.0, 0.0), (0.0, 1.0)))


def test_one_round_of_the_toy_problem() -> None:
    """The two updates of T conflict: (0.19, -0.36)·(-1.314, 0.28525) = -0.35235.

    ‖Δ₀‖² = 0.1657, ‖Δ₁‖² = 1.8079635625: each minus its part along the other, weighted 1/4 and 3/4.
    """
    first, second = torch.tensor([[0.19, -0.36], [-1.314, 0.28525]], dtype=torch.float64)
    product = -0.19 * 1.314 - 0.36 * 0.28525
    expected: Tensor = (first - product / 1.8079635625 * second) / 4 + (second - product / 0.1657 * first) * 3 / 4
    assert close(apply(torch.stack([first, second]), GradientHarmonization(), samples=[1, 3])[0], expected)


def test_random_order_depends_on_seed_and_round_alone() -> None:
    """For PCGrad, too, whose order is this rule's."""

    def drawn(seed: int, *monitors: Any) -> list[Tensor]:
        rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        capture = apply(rows, *monitors, GradientHarmonization(), seed=seed, rounds=2)[1]
        return [cohort.mixing for cohort in capture.cohorts]

    first, other = drawn(1), drawn(2)
    assert all(map(torch.equal, first, drawn(1, ConflictMonitor())))
    assert not close(first[0], first[1])
    assert not close(first[0], other[0])


class TwoLayers(LightningModule):
    """Three parameters in the first layer, two in the second, all of them 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 1).double(), nn.Linear(1, 1).double()
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


@pytest.mark.parametrize("variant", ["paper", "slides"])
@pytest.mark.parametrize("before", [[], [FedAvg("uniform")], [FedNova()]])
def test_by_layer_each_layer_is_harmonised_alone(variant: Any, before: list[Any]) -> None:
    """Both layers' parts meet the others in one random order, as each would alone."""
    wide = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    settings: Any = {"samples": [1, 1, 2, 3], "steps": [1, 2, 1, 4]}
    step, capture = apply(wide, *before, GradientHarmonization(variant, layers=True), client=TwoLayers(), **settings)
    parts = [apply(part, *before, GradientHarmonization(variant), **settings)[0] for part in (wide[:, :3], wide[:, 3:])]
    assert close(step, torch.cat(parts))
    assert not close(step, apply(wide, *before, GradientHarmonization(variant), **settings)[0], 1e-3)
    assert close(capture.cohort.gram, wide @ wide.T)


def test_by_layer_with_weights_of_another_rule_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="GradientHarmonization uses no weights, so Krum does nothing"):
        run(GradientHarmonization(layers=True), Krum(1))
