"""Norm clipping of (3, 4), (0, 2), (6, 8), norms 5, 2, 10, by hand, and its properties."""

from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import close

from fl_lightning.callbacks import FedNova, NormClipping

SENT = [[3.0, 4.0], [0.0, 2.0], [6.0, 8.0]]


@pytest.mark.parametrize(
    ("threshold", "clipped", "model"),
    [
        (None, ((3, 4), (0, 2), (3, 4)), (2.25, 3.5)),
        (4.0, ((2.4, 3.2), (0, 2), (2.4, 3.2)), (1.8, 2.9)),
        (1.0, ((0.6, 0.8), (0, 1), (0.6, 0.8)), (0.45, 0.85)),
        (10.0, SENT, (3.75, 5.5)),
        (float("inf"), SENT, (3.75, 5.5)),
    ],
)
def test_three_updates(threshold: float | None, clipped: Any, model: Any) -> None:
    """The median norm is 5. Weights (1, 1, 2)/4 stay."""
    reached, capture = apply(SENT, NormClipping(threshold), samples=[1, 1, 2])
    assert close(capture.corrected, clipped)
    assert close(capture.cohort.weights, (0.25, 0.25, 0.5))
    assert close(reached, model)


def test_the_median_of_two_norms_is_their_mean() -> None:
    """(5 + 10)/2 = 7.5 takes (6, 8) to (4.5, 6)."""
    assert close(apply([SENT[0], SENT[2]], NormClipping())[1].corrected, ((3, 4), (4.5, 6)))


def test_it_follows_rules_before_it() -> None:
    """FedNova with steps (1, 3), uniform: τ_eff = 2 scales (1, 0), (0, 3) to (2, 0), (0, 2): neither exceeds 2."""
    updates = [[1.0, 0.0], [0.0, 3.0]]
    assert close(apply(updates, FedNova(), NormClipping(2.0), steps=[1, 3])[0], (1.0, 1.0))
    assert close(apply(updates, NormClipping(2.0), FedNova(), steps=[1, 3])[0], (1.0, 2 / 3))


def test_one_client_moves_the_model_by_its_share_of_the_threshold_at_most() -> None:
    """Weight 1/3 of an update of norm 5 at most, whatever is sent."""
    without = torch.tensor([3.0, 6.0], dtype=torch.float64) / 3
    for scale in (-1e8, 1.0, 1e8):
        step = apply([*SENT[:2], [scale * 6.0, scale * 8.0]], NormClipping())[0]
        assert (step - without).norm() <= 5 / 3 + 1e-9


def test_zero_updates_stay_zero() -> None:
    """All of them; two of three, whose median norm 0 stops the third; one of three."""
    assert close(apply(torch.zeros(3, 2), NormClipping())[1].corrected, torch.zeros(3, 2), 0.0)
    assert close(apply([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]], NormClipping())[1].corrected, torch.zeros(3, 2), 0.0)
    assert close(apply([[0.0, 0.0], SENT[0], SENT[2]], NormClipping())[1].corrected, ((0, 0), (3, 4), (3, 4)))
