"""ExtendedDirichlet: classes per client, shares within a class, its two ends, refusals. Tolerances: 5 errors."""

import math

import pytest
import torch
from lib.partitions import class_counts, many, split
from scipy import stats

from fl_lightning.datamodules import ExtendedDirichlet
from fl_lightning.errors import ConfigurationError

LABELS = torch.arange(6000) % 6  # 1000 examples of each of six classes


@pytest.mark.parametrize("alpha", [1e-300, 0.1, 1.0, math.inf])
def test_every_example_has_one_client_of_few_classes(alpha: float) -> None:
    """Nine clients hold two of six classes: each class has three holders at most, whoever gets examples."""
    for seed in range(20):
        counts = class_counts(ExtendedDirichlet(2, alpha), LABELS, 9, seed)
        assert counts.sum(0).tolist() == [1000] * 6
        assert int((counts > 0).sum(1).max()) <= 2
        assert int((counts > 0).sum(0).max()) <= 3
    parts = split(ExtendedDirichlet(2, alpha), LABELS, 9, seed=1)
    assert torch.cat(parts).sort().values.tolist() == list(range(6000))


def test_all_classes_have_equally_many_holders() -> None:
    """At a large alpha every holder gets examples: 7 clients x 2 classes are 14 = 4 x 2 + 2 x 3 holders."""
    for seed in range(20):
        held = class_counts(ExtendedDirichlet(2, 100.0), LABELS, 7, seed) > 0
        assert held.sum(1).tolist() == [2] * 7
        assert sorted(held.sum(0).tolist()) == [2, 2, 2, 2, 3, 3]


def test_shares_of_a_class_are_dirichlet() -> None:
    """Three holders of a class: a share is Beta(0.5, 1), of mean 1/3 and variance 2/9 / 2.5 = 4/45.

    Of nine clients, a client holds a class with probability 1/3, and otherwise has none of it: over all clients the
    share of a class has mean 1/9, and mean square 1/3 (1/9 + 4/45) = 1/15.
    """
    shares = many(ExtendedDirichlet(2, 0.5), LABELS, 9, seeds=2000)[:, 0, 0].double() / 1000
    law = stats.beta(0.5, 1)
    assert law.stats("mv") == pytest.approx((1 / 3, 4 / 45))
    square_error = math.sqrt((law.moment(4) / 3 - 1 / 15**2) / 2000)
    assert shares.mean().item() == pytest.approx(1 / 9, abs=5 * math.sqrt((1 / 15 - 1 / 81) / 2000))
    assert (shares**2).mean().item() == pytest.approx(1 / 15, abs=5 * square_error)


def test_at_its_ends() -> None:
    """Infinity shares a class evenly, 333 or 334 for each of three holders; near 0 one holder gets the whole class."""
    even = class_counts(ExtendedDirichlet(2, math.inf), LABELS, 9)
    assert set(even[even > 0].tolist()) == {333, 334}
    corners = class_counts(ExtendedDirichlet(2, 1e-300), LABELS, 9)
    assert sorted(corners.flatten().tolist()) == [0] * 48 + [1000] * 6


def test_refusals() -> None:
    with pytest.raises(ConfigurationError, match="expected alpha > 0, got 0"):
        ExtendedDirichlet(2, 0)
    with pytest.raises(ConfigurationError, match="classes must be at least 1, got 0"):
        ExtendedDirichlet(0, 1.0)
    with pytest.raises(ConfigurationError, match="expected classes <= 6, the number of classes, got 7"):
        split(ExtendedDirichlet(7, 1.0), LABELS, 9)
    with pytest.raises(ConfigurationError, match="so that every class has a holder, got 2 x 2"):
        split(ExtendedDirichlet(2, 1.0), LABELS, 2)
