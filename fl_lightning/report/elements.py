"""What a page consists of: sections, tables and charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from fl_lightning.report.drawing.plots import Plot

Content = TypeVar("Content")
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
class Frame(Generic[Content]):
    """Holds what one panel of a chart shows, of one round or of all rounds.

    Attributes:
        text: a summary for each view: values as text, by their names.
        content: the data that explore.js draws, a dataclass.
        round: the round; None if the frame is of all rounds.
    """

    text: Sequence[Mapping[str, str]]
    content: Content
    round: int | None = None


@dataclass(frozen=True)
class FramesOfRun(Generic[Content]):
    """The frames of one run.

    Attributes:
        panel: number of the panel that shows the run.
        seed: name of the run's seed.
        frames: the frames, by round.
    """

    panel: int
    seed: str
    frames: Sequence[Frame[Content]]


@dataclass(frozen=True)
class Frames(Generic[Content]):
    """Holds a chart's panels for every seed, round, view and order of the clients, among which the reader chooses.

    Attributes:
        panels: names of the panels. A panel with a method's name is hidden with the method.
        runs: the frames of each run.
        views: names of the views of a frame, if frames have several, which can be shown alone or side by side.
        orders: orders of the clients other than by id, for each seed: client ids by name of the order.
        recorded: number of recorded frames, of which some may be left out to keep the page small.
    """

    panels: Sequence[str]
    runs: Sequence[FramesOfRun[Content]]
    views: Sequence[str] = ()
    orders: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    recorded: int = 0

    @property
    def every(self) -> list[Frame[Content]]:
        """Return the frames of all runs."""
        return [frame for run in self.runs for frame in run.frames]

    @property
    def note(self) -> str:
        """Return the caption's sentence on how many frames were left out; empty if none were left out."""
        shown = len(self.every)
        if shown >= self.recorded:
            return ""
        return f" Of {self.recorded:,} recorded matrices {shown:,} are shown, evenly spread over the rounds."

    @property
    def printed_frames(self) -> dict[str, Frame[Content]]:
        """Return the frames that are printed, by panel: the last round of the first seed."""
        first = self.runs[0].seed
        return {self.panels[run.panel]: run.frames[-1] for run in self.runs if run.seed == first}


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
    frames: Frames[Any] | None = None
    wide: bool = False


@dataclass(frozen=True)
class Measure:
    """A quantity that the table of clients shows.

    Attributes:
        title: heading of the quantity's columns.
        percent: whether the values are shares.
        low: value at the lower end of all sparklines.
        high: value at the upper end of all sparklines.
    """

    title: str
    percent: bool
    low: float
    high: float


@dataclass(frozen=True)
class MeasuredClients:
    """The values of a measure in one run, each a list with an entry for each client; None if there is no value.

    Attributes:
        last: the last value.
        mean: mean over the rounds.
        sparks: a text of one letter per round (0 for the low end, z for the high one, a dot for a round without a
            value), which clients.js draws as a sparkline.
    """

    last: Sequence[float | None]
    mean: Sequence[float | None]
    sparks: Sequence[str]


@dataclass(frozen=True)
class RunOfClients:
    """The clients of one run, as rows of the table of clients.

    Attributes:
        method: number of the run's method.
        seed: name of the run's seed.
        of: number of all clients, of which only some may be in the table.
        clients: ids of the clients in the table.
        columns: facts about the clients, a number for each client, by title.
        measures: values of each measure of the table.
    """

    method: int
    seed: str
    of: int
    clients: Sequence[int]
    columns: Mapping[str, Sequence[float | None]]
    measures: Sequence[MeasuredClients]


@dataclass(frozen=True)
class ClientsTable:
    """The table of clients, as clients.js reads it.

    Attributes:
        measures: the quantities that the table shows.
        runs: the runs, at least one; the reader chooses one of them.
    """

    measures: Sequence[Measure]
    runs: Sequence[RunOfClients]


@dataclass(frozen=True)
class OtherAxis:
    """A quantity that curves can have on the x-axis in place of the round.

    Attributes:
        key: name of the quantity in the page's choice.
        title: title of the axis, with the unit.
        values: for each method the rounds, and the quantity's value after each of them.
    """

    key: str
    title: str
    values: Sequence[tuple[Sequence[int], Sequence[float | None]]]


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
        clients: the table of clients.
    """

    key: str
    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()
    folded: Sequence[Table] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    clients: ClientsTable | None = None

    def __bool__(self) -> bool:
        """Whether the section has any content."""
        return bool(self.tables or self.charts or self.notes or self.folded or self.texts or self.clients)


def for_scripts(value: Any) -> dict[str, Any]:
    """Turn a dataclass into what JSON writes for the page's scripts: its fields by name, in their order.

    Scripts read the fields of a frame's content beside the frame's own; a frame of all rounds has no round.
    """
    if not isinstance(value, Frame):
        return {attribute.name: getattr(value, attribute.name) for attribute in fields(value)}
    of_round = {} if value.round is None else {"round": value.round}
    return {**of_round, "text": value.text, **for_scripts(value.content)}


def pipes(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    r"""Write a table for Markdown, line by line.

    >>> pipes(["method", "seeds"], [["A|B", "3"]])
    ['| method | seeds |', '| --- | --- |', '| A\\|B | 3 |']
    """
    lines = [[cell.replace("|", "\\|") for cell in cells] for cells in (head, ["---"] * len(head), *rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]
