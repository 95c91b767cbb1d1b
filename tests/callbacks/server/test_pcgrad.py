"""PCGrad on g₁ = (2, 0), g₂ = (-1, 1), g₃ = (-1, -2), by hand, and against gradient harmonization."""

from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close

from fl_lightning.callbacks import FedAvg, GradientHarmonization, PCGrad


@pytest.mark.parametrize(
    ("rule", "by_hand"),
    [
        (PCGrad(order="ascending"), (-1 / 3, -1 / 3)),
        (PCGrad(order="descending"), (0.4 / 3, -0.5 / 3)),
        (PCGrad("sum", "ascending"), (-1.0, -1.0)),
        (PCGrad("sum", "descending"), (0.4, -0.5)),
    ],
)
def test_three_updates_in_conflict(rule: PCGrad, by_hand: Any) -> None:
    """Projected as by gradient harmonization, in test_gh, the three are (0.4, -0.2), (-0.4, 0.2), (-1, -1) in ascending
    order, and (0.4, 0.4), (0, 0.6), (0, -1.5) in descending. The numbers of samples, (1, 1, 2), do not count.
    """
    model, capture = apply(UPDATES, rule, samples=[1, 1, 2])
    assert close(model, by_hand)
    assert torch.equal(capture.cohort.mixing, apply(UPDATES, GradientHarmonization(order=rule.order))[1].cohort.mixing)


def test_two_updates_whatever_the_order() -> None:
    """(2, 0), (-1, 1) become (1, 1) and (0, 1): mean (0.5, 1)."""
    assert close(apply([[2.0, 0.0], [-1.0, 1.0]], PCGrad())[0], (0.5, 1.0))


@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_no_conflict_is_exactly_the_uniform_average(order: Any) -> None:
    """(1, 0), (0, 2) are orthogonal, (1, 1) agrees with both; their sum is (2, 3)."""
    updates = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]
    average = apply(updates, FedAvg("uniform"), samples=[1, 1, 2])[0]
    assert torch.equal(apply(updates, PCGrad(order=order), samples=[1, 1, 2])[0], average)
    assert close(apply(updates, PCGrad("sum", order), samples=[1, 1, 2])[0], (2.0, 3.0), 0.0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_zero_updates_are_no_partners(reduction: Any) -> None:
    """(2, 0), (0, 0), (-1, 1): the sum is (1, 1) + (0, 1). Of zeros alone comes zero, of opposites, too."""
    factor = 1 if reduction == "sum" else 1 / 3
    model, _ = apply([[2.0, 0.0], [0.0, 0.0], [-1.0, 1.0]], PCGrad(reduction))
    assert close(model, (factor, 2 * factor))
    assert close(apply([[0.0, 0.0]] * 2, PCGrad(reduction))[0], (0.0, 0.0), 0.0)
    assert close(apply([[0.1, 0.7], [-0.3, -2.1]], PCGrad(reduction))[0], (0.0, 0.0), 1e-15)
