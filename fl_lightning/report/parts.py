"""What a page is made of: sections of tables and charts, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DIGITS = 5  # significant ones of a number in a chart
PER_CENT = "\N{NO-BREAK SPACE}%"
ROWS = 50  # of a folded table of numbers


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        head: one name a column; the first column names the rows.
        rows: cells.
        caption: what it shows.
        words: cells are words rather than numbers.
        values: numbers to sort the rows by, in place of the text; a table without them cannot be sorted.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    words: bool = False
    values: Sequence[Sequence[float | None]] = ()


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        key: its id on the page.
        title: what it shows.
        caption: how to read it.
        alt: a sentence for those who do not see it.
        figure: Plotly's ``data`` and ``layout``.
        numbers: the same as a table.
        runs: of a chart with a choice of runs, each ``{"name", "frames"}``; page.js says what a frame is.
        views: of a chart with several views of a frame, their names.
        wide: it takes the page's whole width.
        square: its height follows from its width.
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
        key: its id.
        title: its heading.
        intro: a sentence below it.
        charts: shown after the tables.
        tables: shown first.
        folded: tables to be opened, by their captions.
        texts: texts to be opened, by what they are called.
    """

    key: str
    title: str
    intro: str = ""
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    folded: Sequence[Table] = ()
    texts: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.tables or self.charts or self.folded or self.texts)


def rounded(values: Iterable[float]) -> list[float | None]:
    """Numbers for a chart: short, and None for what is not finite, which JSON cannot say."""
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values]


def written(value: float, percent: bool = False) -> str:
    """A number for a reader: 89.30 %, 0.1234, 12,345; a dash for none."""
    if math.isnan(value):
        return "–"
    if percent:
        text = f"{100 * value:.2f}{PER_CENT}"
    elif math.isfinite(value) and value == int(value):
        text = f"{int(value):,}"
    else:
        text = f"{value:.4g}"
    return text.replace("-", "−")


def thin(count: int, most: int) -> list[int]:
    """At most so many of the positions 0 … count - 1, evenly spread, the last among them."""
    return sorted({round(float(at)) for at in np.linspace(count - 1, 0, min(count, most))})


def fewer(shown: int, of: int, what: str) -> str:
    """What a reader must know of a table or chart that does not show all; nothing if it does."""
    return f" ({shown:,} of {of:,} {what}, evenly spread)" if shown < of else ""
