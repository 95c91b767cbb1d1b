"""Trimmed means of one to five values, by hand, and their properties."""

from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close

from fl_lightning.callbacks import FedNova, TrimmedMean
from fl_lightning.callbacks.server.trimmed_mean import trimmed_mean
from fl_lightning.engine.updates import updates as shared

FIVE = [[1.0, -50.0], [7.0, 2.0], [2.0, 0.0], [90.0, 1.0], [3.0, 9.0]]


@pytest.mark.parametrize(
    ("updates", "ratio", "model"),
    [
        (FIVE, 0.0, (20.6, -7.6)),
        (FIVE, 0.19, (20.6, -7.6)),
        (FIVE, 0.2, (4.0, 1.0)),
        (FIVE, 0.39, (4.0, 1.0)),
        (FIVE, 0.4, (3.0, 1.0)),
        (UPDATES[:2], 0.4999999999999, (0.5, 0.5)),
        (UPDATES[:1], 0.4, UPDATES[0]),
    ],
)
def test_by_hand(updates: Any, ratio: float, model: Any) -> None:
    """Ordered: 1, 2, 3, 7, 90 and -50, 0, 1, 2, 9. None dropped: 103/5, -38/5. One: 12/3, 3/3. Two: 3, 1.

    n_k does not count. Something is always left: of two values both, of one itself.
    """
    assert close(apply(updates, TrimmedMean(ratio), samples=[9, 1, 4, 2, 2][: len(updates)])[0], model)


def test_the_share_is_not_rounded_down_by_floating_point() -> None:
    """0.29 · 100 = 28.999999999999996: of 29 values 1 and 71 values 0, all of the 1s are dropped."""
    values = torch.zeros(100, 1)
    values[:29] = 1
    assert 0.29 * 100 < 29
    assert close(apply(values, TrimmedMean(0.29))[0], [0.0], 0.0)


@pytest.mark.parametrize("shape", [(1, 3), (4, 1), (4, 3)])
def test_the_updates_stay_as_they_are(shape: tuple[int, int]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    before = values.clone()
    trimmed_mean(values, (len(values) - 1) // 2)
    assert torch.equal(values, before)


def test_it_follows_rules_before_it() -> None:
    """FedNova with steps (1, 2, 3) and weights 1/3: τ_eff = 2 scales (2, 4, 9) to (4, 4, 6): the median is 4, not 4.5.

    The second coordinate, (3, 4, 3), becomes (6, 4, 2).
    """
    updates = [[2.0, 3.0], [4.0, 4.0], [9.0, 3.0]]
    assert close(apply(updates, FedNova(), TrimmedMean(0.4), steps=[1, 2, 3])[0], (4, 4))


def test_long_updates_go_through_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven coordinates in blocks of three; each is on its own: the mean of its middle three values."""
    updates = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(shared, "COLUMNS", 3)
    expected = [sum(sorted(column)[1:4]) / 3 for column in updates.T.tolist()]
    assert close(apply(updates, TrimmedMean(0.2))[0], expected)
