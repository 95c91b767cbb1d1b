"""Numbers of several seeds: bands over rounds, intervals, and how values and labels are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from scipy import stats  # type: ignore[import-untyped]  # it ships no types


def band(values: pd.DataFrame) -> pd.DataFrame:
    """Summarise values that have a column a seed.

    Returns:
        ``mean``, the smallest (``low``) and largest (``high``), and how many ``seeds``, row by row. (A t interval would
        be nine deviations wide with two seeds, and hide all else.)
    """
    edges = {"low": values.min(axis=1), "high": values.max(axis=1)}
    return pd.DataFrame({"mean": values.mean(axis=1), **edges, "seeds": values.count(axis=1)})


def interval(values: Sequence[float] | pd.Series) -> tuple[float, float]:
    """Mean, and half the width of its 95 % t interval (nan for fewer than two values)."""
    values = pd.Series(values, dtype=float).dropna()
    if len(values) < 2:
        return float(values.mean()), math.nan
    return float(values.mean()), float(stats.t.ppf(0.975, len(values) - 1) * values.sem())


def label(value: Any) -> str:
    """Write a label of an axis as a reader does: an infinite alpha is "IID", none is a dash."""
    if isinstance(value, float) and math.isinf(value):
        return "IID"
    return "–" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)
