"""Krum on five updates along a line, by hand, and its properties."""

from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import close

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import FedNova, Krum
from fl_lightning.callbacks.server.krum import krum, krum_scores

LINE = [[0.0, 1.0], [1.0, 1.0], [3.0, 1.0], [100.0, 1.0], [4.5, 1.0]]


@pytest.mark.parametrize(
    ("num_selected", "weights", "model"),
    [
        (1, (0, 1, 0, 0, 0), (1.0, 1.0)),
        (2, (0, 0.5, 0.5, 0, 0), (2.0, 1.0)),
        (3, (1 / 3, 1 / 3, 1 / 3, 0, 0), (4 / 3, 1.0)),
        (4, (0.25, 0.25, 0.25, 0, 0.25), (2.125, 1.0)),
        (5, (0.2, 0.2, 0.2, 0.2, 0.2), (21.7, 1.0)),
    ],
)
def test_five_updates_on_a_line(num_selected: int, weights: Any, model: Any) -> None:
    """K = 5, f = 1: each sums up the squared distances to its 2 nearest others. n_k does not count.

    0: 1 + 9 = 10. 1: 1 + 4 = 5. 3: 2.25 + 4 = 6.25. 100: 95.5² + 97² = 18529.25. 4.5: 2.25 + 12.25 = 14.5.
    """
    reached, capture = apply(LINE, Krum(1, num_selected), samples=[9, 1, 2, 5, 3])
    assert close(krum_scores(capture.cohort.gram, 1), (10.0, 5.0, 6.25, 18529.25, 14.5))
    assert close(capture.cohort.weights, weights)
    assert close(reached, model)


def test_fewer_byzantine_clients_mean_more_neighbours() -> None:
    """F = 0: 3 nearest others. 0: 10 + 20.25 = 30.25. 1: 5 + 12.25 = 17.25. 3: 6.25 + 9 = 15.25 wins. 4.5: 34.75."""
    reached, capture = apply(LINE, Krum(0))
    assert close(krum_scores(capture.cohort.gram, 0)[[0, 1, 2, 4]], (30.25, 17.25, 15.25, 34.75))
    assert close(reached, (3.0, 1.0))


@pytest.mark.parametrize("scale", [2**-20, 1.0, 2**20])
def test_ties_go_to_the_lower_client_at_any_scale(scale: float) -> None:
    """0.3, 0.2, 0.1, f = 0: each is 0.1 from its nearest, but rounding has the first a little further."""
    updates = scale * torch.tensor([[0.3], [0.2], [0.1]], dtype=torch.float64)
    scores = krum_scores(updates @ updates.T, 0)
    assert scores[1:].min() < scores[0], "no rounding to be seen: this would test nothing"
    assert close(apply(updates, Krum(0))[0], [0.3 * scale], 1e-9 * scale)


def test_a_huge_update_hides_no_difference() -> None:
    """0 and 2 are further from their neighbours than 0.9 is, however large the fifth. f = 1, 2 nearest others.

    0: 0.81 + 4 = 4.81. 2: 1.21 + 1.44 = 2.65. 0.9: 0.81 + 1.21 = 2.02. 3.2: 1.44 + 5.29.
    """
    updates = torch.tensor([[0.0], [2.0], [0.9], [3.2], [1e12]], dtype=torch.float64)
    assert krum(updates @ updates.T, 1, 2) == [2, 1]


def test_it_follows_rules_before_it() -> None:
    """FedNova with steps (1, 1, 4), uniform: τ_eff = 2 scales (2, 0), (0, 2), (4, 4) to (4, 0), (0, 4), (2, 2).

    f = 0, 1 nearest: 8 each, where it was 8, 8, 20 before. So the third wins when it comes first, as it would not have.
    """
    updates = [[2.0, 0.0], [0.0, 2.0], [4.0, 4.0]]
    _, capture = apply(updates, FedNova(), Krum(0), steps=[1, 1, 4])
    assert close(krum_scores(capture.cohort.corrected_gram, 0), (8.0, 8.0, 8.0))
    assert close(krum_scores(capture.cohort.gram, 0), (8.0, 8.0, 20.0))
    assert close(apply([[4.0, 4.0], *updates[:2]], FedNova(), Krum(0), steps=[4, 1, 1])[0], (2.0, 2.0))


def test_one_client_is_followed_and_zero_updates_move_nothing() -> None:
    assert close(apply([[3.0, -1.0]], Krum(4, 12))[0], (3.0, -1.0))
    reached, capture = apply(torch.zeros(5, 2), Krum(1))
    assert close(reached, (0.0, 0.0), 0.0)
    assert close(capture.cohort.weights, (1, 0, 0, 0, 0))


@pytest.mark.parametrize(("rule", "size"), [(Krum(2), 7), (Krum(1, num_selected=6), 6)])
def test_cohorts_that_are_too_small_are_refused(rule: Krum, size: int) -> None:
    """2f + 3 = 7 clients, or m = 6, are enough and one fewer is not."""
    updates = torch.randn(size, 2, generator=torch.Generator().manual_seed(0))
    assert apply(updates, rule)[0].isfinite().all()
    with pytest.raises(ConfigurationError, match=f"num_byzantine={rule.num_byzantine}.*K={size - 1} in round 1") as bad:
        apply(updates[1:], rule)
    assert "\n" not in str(bad.value)
