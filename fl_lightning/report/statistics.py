"""Summarise runs that differ in their seed: bands over rounds, intervals, tests; and write labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

FEWEST_SEEDS = 3  # smallest number of seeds with which a difference can be called significant
LEVEL = 0.05  # largest p value of a difference that is called significant


def band(values: pd.DataFrame) -> pd.DataFrame:
    """Summarise the values of several seeds, row by row.

    Args:
        values: one column per seed.

    Returns:
        Columns ``mean``, ``low`` and ``high`` (edges of the 95 % t interval, see :func:`interval`; nan for fewer than
        two values) and ``seeds`` (the number of values).
    """
    mean, seeds = values.mean(axis=1), values.count(axis=1)
    half = pd.Series(stats.t.ppf(0.975, seeds.clip(lower=2) - 1), values.index) * values.sem(axis=1)
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half, "seeds": seeds})


def interval(values: Sequence[float] | pd.Series) -> tuple[float, float]:
    """Compute the mean and half the width of its 95 % t interval (nan for fewer than two values).

    The values 1 and 3 have mean 2 and standard error 1, so half the width is the t quantile with one degree of freedom:

    >>> mean, half_width = interval([1.0, 3.0])
    >>> mean, round(half_width, 2)
    (2.0, 12.71)
    """
    values = pd.Series(values, dtype=float).dropna()
    if len(values) < 2:
        return float(values.mean()), math.nan
    return float(values.mean()), float(stats.t.ppf(0.975, len(values) - 1) * values.sem())


def paired(one: pd.Series, other: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Keep the values that two sides have both, seed by seed.

    Runs of one seed share partition, cohorts and initial weights. So two sides are compared within a seed, and their
    differences are tested over the seeds (:func:`p_above`). Seed 1 has two rounds on one side and one on the other,
    and only one side has seed 2:

    >>> a = pd.Series([0.5, 0.6, 0.7], pd.MultiIndex.from_tuples([(1, 1), (1, 2), (2, 1)], names=["seed", "round"]))
    >>> [side.to_dict() for side in paired(a, a.iloc[:1] + 0.25)]
    [{(1, 1): 0.5}, {(1, 1): 0.75}]

    Args:
        one: values of one side, indexed by ``seed`` and what else tells the values apart, such as the round or a cell.
        other: values of the other side, indexed alike.

    Returns:
        The values of either side, in the order of the first.
    """
    shared = one.index.intersection(other.index, sort=False)
    return one.reindex(shared), other.reindex(shared)


def two_sided_p(values: NDArray[np.float64]) -> float:
    """Compute the two-sided p value of a mean other than 0, at most 1, see :func:`p_above`; nan for too few values.

    >>> two_sided_p(np.array([-1.0, 0.0, 1.0])), two_sided_p(np.array([1.0, 1.0, 1.0])), two_sided_p(np.zeros(3))
    (1.0, 0.0, 1.0)
    >>> two_sided_p(np.array([1.0, 1.0]))
    nan
    """
    if len(values) < FEWEST_SEEDS:
        return math.nan
    return min(1.0, 2 * min(p_above(values, 0), p_above(-values, 0)))


def p_above(values: NDArray[np.float64], level: float) -> float:
    """Compute the one-sided p value of a mean above a level; 0 or 1 if all values are the same.

    The mean of 1, 2 and 3 is the level itself, so above and below are equally likely:

    >>> p_above(np.array([1.0, 2.0, 3.0]), level=2.0)
    0.5
    """
    distance = float(values.mean()) - level
    if np.ptp(values) == 0:
        return float(distance <= 0)
    return float(stats.t.sf(distance / stats.sem(values), len(values) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values of several tests by Holm's method (Holm, 1979); nan stays nan and does not count.

    The smallest of three p values is multiplied by 3, the next by 2, and no result may be below the one before:

    >>> holm([0.01, 0.02, 0.03])
    [0.03, 0.04, 0.04]
    """
    order = [at for at in np.argsort(p_values) if not math.isnan(p_values[at])]
    corrected = [math.nan] * len(p_values)
    least = 0.0
    for rank, at in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p_values[at]))
        corrected[at] = least
    return corrected


def label(value: Any) -> str:
    """Write a label of a grid's axis, or a setting: an infinite alpha is "IID", and None is a dash.

    >>> [label(value) for value in ("FedAvg", 0.1, float("inf"), None, [200, 200])]
    ['FedAvg', '0.1', 'IID', '–', '[200, 200]']
    """
    if isinstance(value, float) and math.isinf(value):
        return "IID"
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
