"""Summarise runs that differ in their seed: bands over rounds and intervals; and write labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from scipy import stats  # type: ignore[import-untyped]  # it ships no types


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


def label(value: Any) -> str:
    """Write a label of a grid's axis: an infinite alpha is "IID", no label is a dash.

    >>> [label(value) for value in ("FedAvg", 0.1, float("inf"), None)]
    ['FedAvg', '0.1', 'IID', '–']
    """
    if isinstance(value, float) and math.isinf(value):
        return "IID"
    return "–" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)
