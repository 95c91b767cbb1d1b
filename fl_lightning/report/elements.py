"""What a page consists of: sections, tables and charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fl_lightning.report.drawing.plots import Plot

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
        recorded: number of recorded frames, of which some may be left out to keep the page small.
    """

    panels: Sequence[str]
    runs: Sequence[Mapping[str, Any]]
    views: Sequence[str] = ()
    orders: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    recorded: int = 0

    @property
    def note(self) -> str:
        """Return the caption's sentence on how many frames were left out; empty if none were left out."""
        shown, of = sum(len(run["frames"]) for run in self.runs), self.recorded
        return f" Of {of:,} recorded matrices {shown:,} are shown, evenly spread over the rounds." if shown < of else ""

    @property
    def printed(self) -> dict[str, Mapping[str, Any]]:
        """Return the frames that are printed, by panel: the last round of the first seed."""
        first = [run for run in self.runs if run["seed"] == self.runs[0]["seed"]]
        return {self.panels[run["panel"]]: run["frames"][-1] for run in first}


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
        clients: data of the table of clients, see :mod:`fl_lightning.report.content.clients`.
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


def pipes(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    r"""Write a table for Markdown, line by line.

    >>> pipes(["method", "seeds"], [["A|B", "3"]])
    ['| method | seeds |', '| --- | --- |', '| A\\|B | 3 |']
    """
    lines = [[cell.replace("|", "\\|") for cell in cells] for cells in (head, ["---"] * len(head), *rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]
