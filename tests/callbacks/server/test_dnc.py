"""DnC by hand."""

from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import close

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import DnC, NormClipping
from fl_lightning.callbacks.server.dnc import outlier_scores

LINE = [[0.0, 0.1], [1.0, 0.0], [2.0, -0.1], [30.0, 0.0]]


def test_scores() -> None:
    """Less the mean 8.25, squared, along (1, 0) but for 1e-4 of the angle; and as the singular vector says."""
    updates = torch.tensor(LINE).double()
    assert outlier_scores(updates).tolist() == pytest.approx([8.25**2, 7.25**2, 6.25**2, 21.75**2], rel=0.01)
    centred = updates - updates.mean(0)
    first = torch.linalg.svd(centred).Vh[0]
    assert close(outlier_scores(updates), (centred @ first) ** 2)


LEFT: list[Any] = [(0, 1.0, [0.25] * 4), (1, 1.0, [1 / 3] * 3 + [0]), (1, 2.5, [0, 0.5, 0.5, 0])]


@pytest.mark.parametrize(("f", "factor", "weights"), LEFT)
def test_the_largest_scores_are_left_out(f: int, factor: float, weights: list[float]) -> None:
    """⌊c f⌋ = 0, 1 and 2 of them: of 30 and of 0, in this order."""
    moved, capture = apply(LINE, DnC(f, coordinates=2, draws=3, factor=factor), samples=[1, 9, 1, 1])
    assert close(capture.cohort.weights, weights)
    assert close(moved, torch.tensor(weights).double() @ torch.tensor(LINE).double(), 1e-7)


def test_it_sees_updates_as_the_rules_before_it_left_them() -> None:
    """Clipped to 1, the largest update stands out no more: 0 does."""
    _, capture = apply(LINE, NormClipping(1.0), DnC(1, coordinates=2, draws=1))
    assert close(capture.cohort.weights, [0, 1 / 3, 1 / 3, 1 / 3], 1e-7)


def test_each_draw_looks_at_some_coordinates() -> None:
    """Clients 0 and 1 lie in one coordinate each: with one coordinate a draw, each is left out in some draws."""
    updates = torch.zeros(4, 2)
    updates[0, 0] = updates[1, 1] = 9.0
    _, capture = apply(updates, DnC(1, coordinates=1, draws=12))
    assert close(capture.cohort.weights, [0, 0, 0.5, 0.5])


def test_where_none_stays_in_all_draws() -> None:
    """Of two clients one is left out in each draw: in two of three client 1, or client 0, and never both."""
    _, capture = apply([[1.0, 0.0], [0.0, 1.0]], DnC(1, coordinates=1, draws=3))
    assert sorted(capture.cohort.weights.tolist()) == [0.0, 1.0]


def test_arguments() -> None:
    for wrong, message in ({"num_byzantine": -1}, "num_byzantine"), ({"num_byzantine": 1, "draws": 0}, "draws"):
        with pytest.raises(ConfigurationError, match=f"{message} must be at least"):
            DnC(**wrong)
    with pytest.raises(ConfigurationError, match="factor must be positive"):
        DnC(1, factor=0.0)
