"""The coordinate-wise median of one to four updates, by hand."""

from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close

from fl_lightning.callbacks import CoordinateMedian, NormClipping


@pytest.mark.parametrize(
    ("updates", "model"),
    [
        (UPDATES, (-1.0, 0.0)),
        ([*UPDATES, [7.0, 0.5]], (0.5, 0.25)),
        (UPDATES[:2], (0.5, 0.5)),
        (UPDATES[:1], (2.0, 0.0)),
    ],
)
def test_middle_values(updates: Any, model: Any) -> None:
    """2, -1, -1 and 0, 1, -2: -1 and 0. With 7 and 0.5: (-1 + 2)/2 and (0 + 0.5)/2. Of two: the mean. Of one: itself.

    n_k does not count.
    """
    assert close(apply(updates, CoordinateMedian(), samples=[7, 1, 2, 3][: len(updates)])[0], model)


def test_it_follows_rules_before_it() -> None:
    """Clipped to the norm 1: (3, 4) → (0.6, 0.8), (-5, 0) → (-1, 0), (0, 0.5) stays: the medians are 0 and 0.5."""
    assert close(apply([[3.0, 4.0], [-5.0, 0.0], [0.0, 0.5]], NormClipping(1.0), CoordinateMedian())[0], (0.0, 0.5))


def test_a_minority_cannot_move_it_out_of_the_others_range() -> None:
    honest = torch.rand(4, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for sent in (-1e9, 1e9):
        step = apply(torch.cat([torch.full((3, 30), sent, dtype=torch.float64), honest]), CoordinateMedian())[0]
        assert (step >= honest.min(0).values).all()
        assert (step <= honest.max(0).values).all()
