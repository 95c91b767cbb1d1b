"""Parts of a page: sections, tables, charts, and written numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DIGITS = 5  # significant digits of a number in a chart
PER_CENT = "\N{NO-BREAK SPACE}%"
ROWS = 50  # largest number of rows in a folded table of numbers


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        head: one name per column; the first column names the rows.
        rows: text of the cells, row by row.
        caption: caption of the table.
        words: whether cells are words rather than numbers.
        values: one number per cell to sort the rows by; without numbers, the table cannot be sorted.
        exports: the table in other formats: texts by file name.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    words: bool = False
    values: Sequence[Sequence[float | None]] = ()
    exports: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    Attributes:
        key: id of the chart on the page.
        title: title of the chart.
        caption: a hint at how to read the chart.
        alt: a sentence for readers who do not see the chart.
        figure: Plotly's ``data`` and ``layout``.
        numbers: the numbers of the chart as a table.
        runs: runs to choose from, each ``{"name", "frames"}`` with the payload of each Frame (explorers.py); empty for
            a chart without a choice.
        views: names of the views of a frame, if a frame has several views.
        wide: whether the chart takes the page's whole width.
        square: whether the height follows from the width.
    """

    key: str
    title: str
    caption: str
    alt: str
    figure: Mapping[str, Any]
    numbers: Table | None = None
    runs: Sequence[Mapping[str, Any]] = ()
    views: Sequence[str] = ()
    wide: bool = False
    square: bool = False


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        key: id of the section.
        title: heading of the section.
        intro: a sentence below the heading.
        tables: tables, shown first.
        charts: charts, shown after the tables.
        folded: tables that are folded under their captions.
        texts: texts that are folded under their names, by name.
    """

    key: str
    title: str
    intro: str = ""
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    folded: Sequence[Table] = ()
    texts: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether the section has any content."""
        return bool(self.tables or self.charts or self.folded or self.texts)


def rounded(values: Iterable[float]) -> list[float | None]:
    """Round numbers for a chart; numbers that are not finite become None, because JSON has only finite numbers."""
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values]


def written(value: float, percent: bool = False) -> str:
    """Write a number for a reader; nan is a dash, and ``percent`` writes a share as 89.30 %.

    >>> [written(value) for value in (0.123456, 12345.0, float("nan"))]
    ['0.1235', '12,345', '–']
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
    digits = min(usual + 2, max(0, 1 - math.floor(math.log10(half)))) if 0 < half < math.inf else usual
    text = f"{mean:{sign}z.{digits}f}"  # z: no minus before zero
    return (text if math.isnan(half) else f"{text} ± {half:.{digits}f}").replace("-", "−")


def pipes(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    r"""Write a table for Markdown, line by line.

    >>> pipes(["method", "seeds"], [["A|B", "3"]])
    ['| method | seeds |', '| --- | --- |', '| A\\|B | 3 |']
    """
    lines = [[cell.replace("|", "\\|") for cell in cells] for cells in (head, ["---"] * len(head), *rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def thin(count: int, most: int) -> list[int]:
    """Choose up to ``most`` evenly spaced indices below ``count``, always including the last.

    >>> thin(10, 4)
    [0, 3, 6, 9]
    """
    return sorted({round(float(at)) for at in np.linspace(count - 1, 0, min(count, most))})


def fewer(shown: int, of: int, what: str) -> str:
    """Note for a table or chart that shows ``shown`` out of ``of`` items; empty if all are shown."""
    return f" ({shown:,} of {of:,} {what}, evenly spread)" if shown < of else ""
