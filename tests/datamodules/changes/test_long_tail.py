"""long_tail: sizes by hand, which examples, refusals."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_lightning.datamodules import long_tail
from fl_lightning.errors import ConfigurationError


def kept(labels: Tensor, ratio: float, seed: int = 0) -> Tensor:
    rows = long_tail(labels, ratio, np.random.default_rng(seed))
    assert rows.dtype == torch.int64
    assert bool((rows.diff() > 0).all())
    return rows


def sizes(labels: Tensor, ratio: float) -> list[int]:
    return torch.bincount(labels[kept(labels, ratio)]).tolist()


def test_three_classes_by_hand() -> None:
    """Classes of 8, ratio 4: 8 * 4^0, 8 * 4^(-1/2), 8 * 4^(-1)."""
    assert sizes(torch.arange(24) % 3, 4.0) == [8, 4, 2]


def test_a_class_never_keeps_more_than_it_has() -> None:
    """The largest class has 8: it is the second that does not have its 4, and the last could have 8."""
    labels = torch.tensor([0] * 6 + [1] * 3 + [2] * 8)
    assert sizes(labels, 4.0) == [6, 3, 2]


def test_rounds_to_the_nearest() -> None:
    """CIFAR-10, ratio 5 (FedLAW, Table 7): 5000 * 5^(-c / 9) = 5000, 4181.3, 3496.6, …, 1195.8, 1000."""
    result = sizes(torch.arange(50_000) % 10, 5.0)
    assert result[:3] + result[-2:] == [5000, 4181, 3497, 1196, 1000]
    assert result[0] / result[-1] == 5


def test_classes_that_do_not_occur_do_not_count() -> None:
    """Classes 3 and 7 are the first and the last of two."""
    assert sizes(torch.tensor([7, 3] * 6), 3.0) == [0, 0, 0, 6, 0, 0, 0, 2]


def test_what_keeps_all() -> None:
    """A ratio of 1 all of balanced data, and a single class whatever the ratio."""
    for labels, ratio in ((torch.arange(30) % 3, 1.0), (torch.arange(0), 1.0), (torch.full((5,), 4), 10.0)):
        assert kept(labels, ratio).tolist() == list(range(len(labels)))


def test_examples_are_drawn_at_random() -> None:
    """Two classes of 8, ratio 2: each example of the second stays with probability 1/2; of the first, always."""
    labels = torch.arange(16) % 2
    often = torch.zeros(16)
    for seed in range(400):
        often[kept(labels, 2.0, seed)] += 1
    assert often[::2].tolist() == [400] * 8
    assert (often[1::2] / 400).tolist() == pytest.approx([0.5] * 8, abs=5 * math.sqrt(1 / 4 / 400))
    assert torch.equal(kept(labels, 2.0, 3), kept(labels, 2.0, 3))


@pytest.mark.parametrize("ratio", [0.5, math.nan, math.inf])
def test_refuses_ratio(ratio: float) -> None:
    with pytest.raises(ConfigurationError, match=r"expected ratio >= 1 of .* got"):
        long_tail(torch.arange(10), ratio, np.random.default_rng(0))
