"""Parts of a page: sections, tables, charts, and written numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fl_lightning.report.plots import Plot

DIGITS = 4  # significant digits of a number in a chart
NBSP = "\N{NO-BREAK SPACE}"
PER_CENT = f"{NBSP}%"
ROWS = 50  # largest number of rows in a folded table of numbers
CELLS = 1500  # about the largest number of cells in a folded table of numbers


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        head: one name per column; the first column names the rows.
        rows: text of the cells, row by row.
        caption: caption of the table.
        words: whether cells are words rather than numbers.
        links: addresses that the names of the rows lead to.
        exports: the table as CSV, Markdown or LaTeX, by file name; the page has buttons to copy and save each.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    words: bool = False
    links: Sequence[str] = ()
    exports: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Frames:
    """Holds a chart's panels for every seed, round, view and order of the clients, among which the reader chooses.

    Attributes:
        panels: names of the panels. A panel with a method's name is hidden with the method.
        runs: for each run ``{"panel", "seed", "frames"}``: number of its panel, its seed, and its frames, each with
            ``round`` (absent if the frame is for all rounds), ``text`` (a summary for each view), and the data that
            explore.js draws.
        views: names of the views of a frame, if frames have several, which can be shown alone or side by side.
        orders: orders of the clients other than by id, for each seed: client ids by name of the order.
        dropped: number of recorded frames that were left out to keep the page small.
    """

    panels: Sequence[str]
    runs: Sequence[Mapping[str, Any]]
    views: Sequence[str] = ()
    orders: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    dropped: int = 0

    @property
    def note(self) -> str:
        """Return the caption's sentence on how many frames were left out; empty if none were left out."""
        shown = sum(len(run["frames"]) for run in self.runs)
        of = shown + self.dropped
        return (
            f" Of {of:,} recorded matrices {shown:,} are shown, evenly spread over the rounds." if self.dropped else ""
        )


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    Attributes:
        key: id of the chart within its part of the page.
        title: title of the chart.
        caption: a hint at how to read the chart.
        alt: a sentence for readers who do not see the chart.
        plot: the chart as data. A chart with frames is printed from it: it shows the last round of the first seed.
        numbers: the numbers of the chart as a table.
        frames: matrices by seed and round, from which the reader chooses; None for a chart without choice.
        wide: whether the chart takes the page's whole width.
    """

    key: str
    title: str
    caption: str
    alt: str
    plot: Plot
    numbers: Table | None = None
    frames: Frames | None = None
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        key: id of the section within its part of the page.
        title: heading of the section.
        sentences: a paragraph below the heading; of each sentence, the part before a semicolon stands out.
        tables: tables, shown first.
        charts: charts, shown after the tables.
        notes: sentences in place of charts, such as on a metric that never changes.
        folded: tables that are folded under their captions.
        texts: texts that are folded under their names, by name.
        clients: data of the table of clients, see :mod:`fl_lightning.report.clients`.
    """

    key: str
    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()
    folded: Sequence[Table] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    clients: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether the section has any content."""
        return bool(self.tables or self.charts or self.notes or self.folded or self.texts or self.clients)


def rounded(values: Iterable[float], digits: int = DIGITS) -> list[float | None]:
    """Round numbers for a chart; numbers that are not finite become None, because JSON has only finite numbers."""
    return [_short(float(f"{value:.{digits}g}")) if math.isfinite(value) else None for value in values]


def _short(value: float) -> float:
    return int(value) if value == int(value) and abs(value) < 1e15 else value


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
