"""Numbers as text, as all tables, charts and files of a report write them; and which of many are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

DIGITS = 4  # significant digits of a number in a chart
NBSP = "\N{NO-BREAK SPACE}"
PER_CENT = f"{NBSP}%"


def rounded(values: Iterable[float], digits: int = DIGITS) -> list[float | None]:
    """Round numbers for a chart; numbers that are not finite become None, because JSON has only finite numbers."""
    return [_short(float(f"{value:.{digits}g}")) if math.isfinite(value) else None for value in values]


def _short(value: float) -> float:
    return int(value) if value == int(value) and abs(value) < 1e15 else value


def written(value: float, percent: bool = False) -> str:
    """Write a number for a reader; nan is a dash, and ``percent`` writes a share as 89.30 %.

    >>> [written(value) for value in (0.123456, 12345.0, -0.012345, float("nan"), float("inf"))]
    ['0.1235', '12,345', '−0.01235', '–', 'inf']
    >>> written(0.25, percent=True).replace(NBSP, " ")
    '25.00 %'
    """
    if math.isnan(value):
        return "–"
    if percent:
        text = f"{100 * value:.2f}{PER_CENT}"
    elif math.isfinite(value) and value == int(value):
        text = f"{int(value):,}"
    else:
        text = f"{value:.4g}"
    return text.replace("-", "−")


def with_interval(mean: float, half: float, percent: bool = False, sign: str = "") -> str:
    """Write ``mean ± half`` with two significant digits of ``half``; without an interval (half nan), the mean alone.

    >>> with_interval(0.2437, 0.101), with_interval(0.893, 0.0041, percent=True), with_interval(0.04, math.nan, True)
    ('0.24 ± 0.10', '89.30 ± 0.41', '4.00')

    Args:
        mean: the mean.
        half: half the width of the interval.
        percent: whether the values are shares, written in per cent without the sign %.
        sign: "+" writes the sign of a positive mean, too.
    """
    mean, half = (100 * mean, 100 * half) if percent else (mean, half)
    if math.isnan(mean):
        return "–"
    usual = 2 if percent else 4
    digits = max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else usual
    digits = digits if digits <= usual + 2 else usual  # a narrower interval is a rounding error
    text = f"{mean:{sign}z.{digits}f}"  # z: no minus before zero
    return (text if math.isnan(half) else f"{text} ± {half:.{digits}f}").replace("-", "−")


def plus_minus(mean: float, half: float, percent: bool = False) -> str:
    """Write ``mean ± half`` with its unit, or the mean alone; see :func:`with_interval` and :func:`written`.

    >>> plus_minus(0.2437, 0.101), plus_minus(0.5, math.nan)
    ('0.24 ± 0.10', '0.5')
    """
    if not half > 0:
        return written(mean, percent)
    return with_interval(mean, half, percent) + PER_CENT * percent


def thin(count: int, most: int) -> list[int]:
    """Choose up to ``most`` evenly spaced indices below ``count``, always including the last.

    >>> thin(10, 4), thin(5, 9), thin(9, 1)
    ([0, 3, 6, 9], [0, 1, 2, 3, 4], [8])
    """
    return sorted({round(float(at)) for at in np.linspace(count - 1, 0, min(count, most))})


def fewer(shown: int, of: int, what: str) -> str:
    """Note for a table or chart that shows ``shown`` out of ``of`` items; empty if all are shown."""
    return f" ({shown:,} of {of:,} {what}, evenly spread)" if shown < of else ""


def as_csv(numbers: pd.DataFrame) -> str:
    """Write a table as CSV. A text that a spreadsheet would take for a formula begins with an apostrophe.

    >>> print(as_csv(pd.DataFrame({"method": ["=1+1", "-0.5", "GH"], "+x": [-0.5, 1.0, 2.0]})), end="")
    method,'+x
    '=1+1,-0.5
    -0.5,1.0
    GH,2.0
    """
    plain = numbers.apply(lambda column: column if pd.api.types.is_numeric_dtype(column) else column.map(_no_formula))
    return str(plain.rename(columns=_no_formula).to_csv(index=False, lineterminator="\n"))


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
