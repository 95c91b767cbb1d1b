"""Print the ledger, and write it as a page with a picture."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fl_lightning.report.printed import PAGE, STYLE
from fl_lightning.reproduce import tables
from fl_lightning.reproduce.ledger import (
    CONTRADICTED,
    FULL,
    HEAD,
    SUPPORTED,
    UNDECIDED,
    Entry,
    Finding,
    covered,
    folder_of,
    ledger,
    markdown,
    read,
    rows,
    summary,
)
from fl_lightning.reproduce.results import RESULTS
from fl_lightning.runs.pictures import save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {SUPPORTED: "#0072b2", CONTRADICTED: "#d55e00", UNDECIDED: "#888888"}  # Okabe and Ito's, and grey
TABLE = "table.md"  # name of an experiment's table in the folder of its results
SHOWN = ["claim", "scale", "ours", "paper", "p (Holm)", "verdict"]  # columns in a terminal
LETTERS, LINE = 62, 0.105  # letters in a line of a claim's text, height of such a line in inches
TEXT, SMALL = 3.3, 6  # width of the claims' texts in inches, size of their letters in points
TICKS = (-50, -10, -1, -0.1, 0, 0.1, 1, 10, 50)
LINEAR = 0.1  # effects up to this size are drawn to scale, larger ones logarithmically
SHAPES = {FULL: "s"}  # markers by scale; circles otherwise


def write_ledger(out: Path, file: str) -> int:
    """Print the ledger of the results below a folder; write it to a file with pictures beside it, if one is named.

    Args:
        out: folder of all results, as ``reproduce --out``.
        file: path of the page in Markdown; empty for none. Beside it are ``<name>-<paper>.png``, one for each paper.

    Returns:
        The exit status, 0.

    Raises:
        ConfigurationError: a results file cannot be read.
    """
    entries = ledger(out)
    console = Console()
    for id in dict.fromkeys(entry.experiment.id for entry in entries):
        mine = [row for entry in entries if entry.experiment.id == id for row in rows(entry)]
        shown = [[dict(zip(HEAD, row, strict=True))[name] for name in SHOWN] for row in mine]
        console.print(tables.framed(id, SHOWN, shown, "left"))
    print(summary(entries))
    if file:
        page = Path(file)
        page.parent.mkdir(parents=True, exist_ok=True)
        for paper in dict.fromkeys(entry.paper for entry in entries):
            own = [entry for entry in entries if entry.paper == paper]
            draw(own, page.with_name(f"{page.stem}-{paper}.png"))
        page.write_text(page_of(entries, out, page), encoding="utf-8")
        print(f"ledger: {page}")
    return 0


def page_of(entries: Sequence[Entry], out: Path, page: Path) -> str:
    """Write the ledger's text for a path, with links to the tables of our runs below ``out``.

    If runs of the papers' own scale leave cells out, the link tells how many were run; smaller scales tell in a note.
    """
    tables = {}
    for entry in entries:
        for scale in entry.findings:
            folder = folder_of(out, scale, entry.experiment.id)
            if (folder / TABLE).is_file():
                part = covered(entry.experiment, read(folder / RESULTS)) if scale == FULL else ""
                link = Path(os.path.relpath(folder / TABLE, page.parent)).as_posix()
                tables[entry.experiment.id, scale] = f"[{part or 'All numbers'}]({link})"
    return markdown(entries, page.stem, tables)


def draw(entries: Sequence[Entry], path: Path) -> None:
    """Draw one row for each claim of a paper, effect and interval beside the paper's point; write a PNG."""
    from matplotlib import style  # here, because the import takes half a second
    from matplotlib.figure import Figure as Drawing

    texts = [textwrap.fill(_called(entry), LETTERS) for entry in entries]
    sizes = [LINE * len(text.splitlines()) + LINE / 2 for text in texts]
    with style.context([STYLE, {"ytick.labelsize": SMALL, "axes.grid.axis": "x"}]):
        figure = Drawing((PAGE, height := sum(sizes) + 0.95))
        figure.subplots_adjust(left=TEXT / PAGE, right=0.985, top=1 - 0.45 / height, bottom=0.4 / height)
        axes = figure.add_subplot()
        _rows(axes, entries, texts, sizes)
        axes.set_title(entries[0].paper, loc="left", fontweight="bold")
        axes.set_xlabel("effect in the claimed direction (mostly points)")
        _explain(figure)
        save_png(figure, path)


def _called(entry: Entry) -> str:
    return f"{entry.experiment.id.partition('/')[2]}: {entry.claim.text}"


def _rows(axes: Axes, entries: Sequence[Entry], texts: Sequence[str], sizes: Sequence[float]) -> None:
    """Draw the rows of a paper from top to bottom, each as high as its text."""
    middle, middles = 0.0, []
    for size in sizes:
        middles.append(middle + size / 2)
        middle += size
    for at, entry in zip(middles, entries, strict=True):
        tried = {scale: found for scale, found in entry.findings.items() if not found.why}
        for number, (scale, found) in enumerate(tried.items()):
            _finding(axes, at + LINE / 2 * (number - (len(tried) - 1) / 2), scale, found)
        axes.plot(entry.best.paper, at, "D", color="black", markerfacecolor="none", markersize=3.5)
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.5)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(middles, texts)
    axes.set_ylim(middle, 0)
    axes.tick_params(axis="y", length=0)
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.set_xticks([], minor=True)


def _finding(axes: Axes, at: float, scale: str, found: Finding) -> None:
    axes.errorbar(
        found.effect,
        at,
        xerr=found.half_width,
        fmt=SHAPES.get(scale, "o"),
        color=COLOURS[found.verdict],
        markersize=3.5,
        elinewidth=0.8,
    )


def _explain(figure: Figure) -> None:
    """Add the legend at the top."""
    from matplotlib.lines import Line2D

    def mark(text: str, shape: str, colour: str, fill: str) -> Line2D:
        return Line2D(
            [], [], marker=shape, linestyle="", color=colour, markerfacecolor=fill, markersize=3.5, label=text
        )

    marks = [
        mark("the paper", "D", "black", "none"),
        mark("ours, full scale", SHAPES[FULL], "black", "black"),
        mark("ours, laptop scale", "o", "black", "black"),
        *(mark(verdict, "o", colour, colour) for verdict, colour in COLOURS.items()),
    ]
    figure.legend(handles=marks, loc="upper center", ncols=len(marks), fontsize=SMALL, handlelength=1)
