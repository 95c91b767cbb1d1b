"""Numbers as multiples of a step, modulo 2^64."""

from fractions import Fraction

import pytest
import torch

from fl_lightning import TrainingError
from fl_lightning.engine.sites.secure.fixed import LARGEST, FixedPoint


def test_the_step_by_hand() -> None:
    """3 sites of 5 examples: 15 · 2^20 / 2^62 is above 2^-39 and at most 2^-38. A power of two stays: 16 = 2^4."""
    assert FixedPoint.of(3, 5) == FixedPoint(2.0**-38, 5 * LARGEST)
    assert FixedPoint.of(4, 4) == FixedPoint(2.0**-38, 4 * LARGEST)


@pytest.mark.parametrize("sites", [3, 10, 1000])
@pytest.mark.parametrize("weight", [1, 7, 10**6])
def test_the_largest_sum_does_not_overflow(sites: int, weight: int) -> None:
    """All sites send the largest number: the sum modulo 2^64 is that of whole numbers without a limit."""
    form = FixedPoint.of(sites, weight)
    for sign in (1, -1):
        word = form.encode(torch.tensor([sign * LARGEST]), weight)
        total = word * sites
        assert int(total) == sites * int(word)
        assert form.decode(total).tolist() == [sign * LARGEST * weight * sites]


def test_an_encoded_number_is_off_by_half_a_step_at_most() -> None:
    form = FixedPoint.of(5, 100)
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    words = form.encode(values, 37)
    for value, word in zip(values.tolist(), words.tolist(), strict=True):
        assert abs(Fraction(value) * 37 - word * Fraction(form.step)) <= Fraction(form.step) / 2


@pytest.mark.parametrize("value", [LARGEST * 1.01, -LARGEST * 1.01, torch.nan, torch.inf])
def test_what_is_too_large_is_refused(value: float) -> None:
    values = torch.zeros(2_000_000)
    values[1_999_999] = value
    with pytest.raises(TrainingError, match="expected numbers of at most 1,048,576 in what sites sum, got"):
        FixedPoint.of(3, 10).encode(values, 10)


def test_a_weight_above_the_largest_is_refused() -> None:
    """The server tells other sizes than the site's own: 20 · 2^20 is above 10 · 2^20."""
    with pytest.raises(TrainingError, match="expected numbers of at most"):
        FixedPoint.of(3, 10).encode(torch.tensor([LARGEST]), 20)
