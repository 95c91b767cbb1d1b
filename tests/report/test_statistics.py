"""Intervals over seeds and the words for labels, by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from fl_lightning.report.statistics import band, holm, interval, label, paired, two_sided_p


def test_band_of_three_seeds_with_one_missing() -> None:
    """Row 1, 2, 6: mean 3, deviation √7, error √(7/3), t(0.975, 2) = 4.3027. Row 4, nan, 8: mean 6, error 2, 12.706.

    A row with one value has no edges.
    """
    rows = band(pd.DataFrame({1: [1.0, 4.0, math.nan], 2: [2.0, math.nan, 5.0], 3: [6.0, 8.0, math.nan]}))
    assert rows[["mean", "seeds"]].to_numpy().tolist() == [[3, 3], [6, 2], [5, 1]]
    half = pytest.approx([4.3027 * math.sqrt(7 / 3), 2 * 12.7062, math.nan], abs=1e-3, nan_ok=True)
    assert (rows["high"] - rows["mean"]).tolist() == half
    assert (rows["mean"] - rows["low"]).tolist() == half
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


def side(**values: float) -> pd.Series:
    """Values by seed and cell: ``s1_a=0.5`` is the cell a of seed 1."""
    index = pd.MultiIndex.from_tuples([(int(name[1]), name[3]) for name in values], names=["seed", "cell"])
    return pd.Series(list(values.values()), index)


def test_pairs_are_what_both_sides_have_within_a_seed() -> None:
    """Seed 1 lacks b on one side and seed 3 is on one side alone; the order is that of the first side."""
    one, other = paired(side(s2_a=5.0, s1_a=1.0, s1_b=2.0, s3_a=7.0), side(s1_a=10.0, s2_a=20.0, s2_b=30.0))
    assert list(one.items()) == [((2, "a"), 5.0), ((1, "a"), 1.0)]
    assert (other - one).to_dict() == {(2, "a"): 15.0, (1, "a"): 9.0}
    assert [len(values) for values in paired(side(s1_a=1.0), side(s2_a=1.0))] == [0, 0]


def test_the_two_sided_p_value() -> None:
    """1, 2, 3: t = 2 / (1/√3) = √12 with two degrees of freedom, so p = 1 - √(12/14); the same for the other side."""
    values = np.array([1.0, 2.0, 3.0])
    assert two_sided_p(values) == pytest.approx(1 - math.sqrt(12 / 14))
    assert two_sided_p(-values) == pytest.approx(two_sided_p(values))


def test_holm_by_hand() -> None:
    """Four tests, one of them not known: 3 × 0.01, 2 × 0.02, and 1 × 0.03, which may not be below 0.04."""
    assert holm([0.03, 0.01, math.nan, 0.02]) == pytest.approx([0.04, 0.03, math.nan, 0.04], nan_ok=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (100.0, "100"), (5e-05, "5e-05"), (math.inf, "IID"), (None, "–"), (math.nan, "–"), (True, "True")],
)
def test_labels(value: object, text: str) -> None:
    assert label(value) == text
