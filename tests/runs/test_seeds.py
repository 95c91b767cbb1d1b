"""Intervals over seeds and the words for labels, by hand."""

import math

import pandas as pd
import pytest

from fl_lightning.runs.seeds import band, interval, label


def test_band_of_three_seeds_with_one_missing() -> None:
    """Rows 1, 2, 6 and 4, nan, 8: means 3 and 6, edges 1 to 6 and 4 to 8, of three seeds and of two."""
    rows = band(pd.DataFrame({1: [1.0, 4.0], 2: [2.0, math.nan], 3: [6.0, 8.0]}))
    assert rows.to_numpy().tolist() == [[3, 1, 6, 3], [6, 4, 8, 2]]
    assert list(rows) == ["mean", "low", "high", "seeds"]


def test_interval_of_three_seeds() -> None:
    """1, 2, 3: mean 2, deviation 1, error 1/√3 = 0.57735; t(0.975, 2) = 4.3027, so 2.4841."""
    assert interval([1, 2, 3]) == pytest.approx((2, 4.3027 / math.sqrt(3)), abs=1e-4)


def test_interval_of_two_seeds_with_one_missing() -> None:
    """1 and 3: mean 2, deviation √2, error 1; t(0.975, 1) = 12.706."""
    assert interval([1, math.nan, 3]) == pytest.approx((2, 12.706), abs=1e-3)


def test_no_interval_of_one_seed_and_no_mean_of_none() -> None:
    assert interval([5]) == pytest.approx((5, math.nan), nan_ok=True)
    assert all(math.isnan(value) for value in interval([math.nan]))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (100.0, "100"), (5e-05, "5e-05"), (math.inf, "IID"), (None, "–"), (math.nan, "–"), (True, "True")],
)
def test_labels(value: object, text: str) -> None:
    assert label(value) == text
