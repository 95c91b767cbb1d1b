"""Numbers as text, as all reports and results write them: with the minus sign −, and – for nan.

A function says how many digits it writes: :func:`fixed` after the point, :func:`significant` in all, and
:func:`with_interval` as many as the interval asks for. :func:`thin` chooses which of many numbers are shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

DIGITS = 4  # significant digits of a number in a chart
NBSP = "\N{NO-BREAK SPACE}"
PER_CENT = f"{NBSP}%"
MINUS_SIGN = "\N{MINUS SIGN}"
LEAST_P = 0.001  # smallest p value that is written


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
        return fixed(100 * value, 2) + PER_CENT
    if math.isfinite(value) and value == int(value):
        return f"{int(value):,}".replace("-", MINUS_SIGN)
    return significant(value, DIGITS)


def fixed(value: float, digits: int, sign: str = "") -> str:
    """Write a number with ``digits`` digits after the point; nan is a dash, and zero has no minus.

    >>> fixed(-0.516, 2), fixed(0.5, 2, "+"), fixed(-0.001, 2), fixed(math.nan, 2)
    ('−0.52', '+0.50', '0.00', '–')

    Args:
        value: the number.
        digits: number of digits after the point.
        sign: "+" writes the sign of a positive number, too.
    """
    if math.isnan(value):
        return "–"
    return f"{value:{sign}z.{digits}f}".replace("-", MINUS_SIGN)  # z: no minus before zero


def significant(value: float, digits: int, sign: str = "") -> str:
    """Write a number with up to ``digits`` significant digits; nan is a dash.

    >>> significant(-0.0123456, 3), significant(12.0, 3, "+"), significant(math.nan, 3)
    ('−0.0123', '+12', '–')

    Args:
        value: the number.
        digits: number of digits.
        sign: "+" writes the sign of a positive number, too.
    """
    if math.isnan(value):
        return "–"
    return f"{value:{sign}.{digits}g}".replace("-", MINUS_SIGN)


def p_value(p: float) -> str:
    """Write a p value; nan is a dash.

    >>> p_value(0.00451), p_value(1e-9), p_value(math.nan)
    ('0.0045', '< 0.001', '–')
    """
    return f"< {LEAST_P}" if p < LEAST_P else significant(p, 2)


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
    if percent:
        mean = 100 * mean
        half = 100 * half
    usual = 2 if percent else 4
    digits = usual
    if 0 < half < math.inf:
        digits = max(0, 1 - math.floor(math.log10(half)))
        if digits > usual + 2:  # so narrow an interval is a rounding error
            digits = usual
    return fixed_interval(mean, half, digits, sign)


def fixed_interval(mean: float, half: float, digits: int, sign: str = "") -> str:
    """Write ``mean ± half`` with ``digits`` digits after the point; without an interval (half nan), the mean alone.

    >>> fixed_interval(-0.516, 0.4, 2), fixed_interval(1.0, math.nan, 2)
    ('−0.52 ± 0.40', '1.00')
    """
    text = fixed(mean, digits, sign)
    if math.isnan(mean) or math.isnan(half):
        return text
    return f"{text} ± {fixed(half, digits)}"


def plus_minus(mean: float, half: float, percent: bool = False) -> str:
    """Write ``mean ± half`` with its unit, or the mean alone; see :func:`with_interval` and :func:`written`.

    >>> plus_minus(0.2437, 0.101), plus_minus(0.5, math.nan)
    ('0.24 ± 0.10', '0.5')
    """
    if not half > 0:
        return written(mean, percent)
    text = with_interval(mean, half, percent)
    return text + PER_CENT if percent else text


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
