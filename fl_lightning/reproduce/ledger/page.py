"""Print the ledger, and write it as a page with a picture."""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fl_lightning.report.drawing.on_paper import PAGE, STYLE
from fl_lightning.report.elements import pipes
from fl_lightning.reproduce.experiments.scale import scale_of
from fl_lightning.reproduce.ledger import findings
from fl_lightning.reproduce.ledger.findings import FULL, Entry
from fl_lightning.reproduce.outcome import tables
from fl_lightning.reproduce.outcome.gate import unrecorded
from fl_lightning.reproduce.outcome.numbers import RESULTS, read
from fl_lightning.reproduce.outcome.verdict import HOLDS, OPEN, OPPOSITE, TOO_SMALL, VERDICTS
from fl_lightning.runs.pictures import save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {HOLDS: "#0072b2", TOO_SMALL: "#56b4e9", OPPOSITE: "#d55e00", OPEN: "#888888"}  # Okabe and Ito's, and grey
TABLE = "table.md"  # name of an experiment's table in the folder of its results
SHOWN = ["claim", "scale", "verdict", "ours", "paper", "seeds"]  # columns in a terminal
LETTERS_A_LINE, LINE_HEIGHT = 62, 0.105  # letters in a line of a claim's text, height of such a line in inches
TEXT_WIDTH, LETTER_SIZE = 3.3, 6  # width of the claims' texts in inches, size of their letters in points
TICKS = (-50, -10, -1, -0.1, 0, 0.1, 1, 10, 50)
LINEAR_UP_TO = 0.1  # effects up to this size are drawn to scale, larger ones logarithmically
LOOK: Any = {"markersize": 3.5, "elinewidth": 0.8}  # of effects
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
    entries, console = findings.ledger(out), Console()
    for id, own in itertools.groupby(entries, key=lambda entry: entry.experiment.id):
        shown = [
            [dict(zip(findings.HEAD, row, strict=True))[name] for name in SHOWN]
            for entry in own
            for row in findings.rows(entry)
        ]
        console.print(tables.framed(id, SHOWN, shown, "left"))
    print(findings.summary(entries))
    if file:
        page = Path(file)
        page.parent.mkdir(parents=True, exist_ok=True)
        for paper, claims in by_paper(entries).items():
            draw(claims, page.with_name(f"{page.stem}-{paper}.png"))
        page.write_text(page_of(entries, out, page), encoding="utf-8")
        print(f"ledger: {page}")
    return 0


def by_paper(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Divide the entries by paper."""
    return {paper: list(own) for paper, own in itertools.groupby(entries, key=lambda entry: entry.paper)}


def page_of(entries: Sequence[Entry], out: Path, page: Path) -> str:
    """Write the ledger's text for a path, with links to the tables of our runs below ``out``.

    The page has counts, a picture of each paper beside the page, and one table for each experiment.
    """
    papers = by_paper(entries)
    counted = [[f"[{paper}](#{paper})", len(own), *findings.counts(own).values()] for paper, own in papers.items()]
    sections = {
        paper: [_section(list(mine), out, page) for _, mine in itertools.groupby(own, lambda each: each.experiment.id)]
        for paper, own in papers.items()
    }
    return tables.page_from(
        "ledger.md.j2",
        summary=findings.summary(entries),
        tally="\n".join(pipes(["paper", "claims", *VERDICTS], [list(map(str, row)) for row in counted])),
        papers=sections,
        name=page.stem,
        chance=findings.chance(entries),
    )


def _section(mine: Sequence[Entry], out: Path, page: Path) -> dict[str, Any]:
    """Write an experiment's table; above it, what is smaller at each scale, and links to the tables of our runs.

    If runs of the papers' own scale leave cells out, the link tells how many were run; smaller scales tell in a note.
    """
    experiment, notes = mine[0].experiment, []
    for scale in mine[0].findings:
        folder = findings.folder_of(out, scale, experiment.id)
        results = read(folder / RESULTS)
        smaller = "" if scale == FULL else f": {scale_of(experiment.config, scale).note}"
        link = ""
        if (folder / TABLE).is_file():
            part = findings.covered(experiment, results) if scale == FULL else ""
            place = Path(os.path.relpath(folder / TABLE, page.parent)).as_posix()
            link = f" [{part or 'All numbers'}]({place})."
        lacks = [] if results.empty else unrecorded(experiment, results)
        told = f" Not recorded, and so not judged: {', '.join(lacks)}." if lacks else ""
        if link or smaller:
            notes.append(f"{scale.capitalize()} scale{smaller}.{link}{told}")
    table = pipes(findings.HEAD, [row for entry in mine for row in findings.rows(entry)])
    return {"id": experiment.id, "notes": notes, "table": "\n".join(table)}


def draw(entries: Sequence[Entry], path: Path) -> None:
    """Draw one row for each claim of a paper, effect and interval beside the paper's point; write a PNG."""
    from matplotlib import style  # here, because the import takes half a second
    from matplotlib.figure import Figure as Drawing

    called = [f"{entry.experiment.id.partition('/')[2]}: {entry.claim.text}" for entry in entries]
    texts = [textwrap.fill(each, LETTERS_A_LINE) for each in called]
    sizes = [LINE_HEIGHT * len(text.splitlines()) + LINE_HEIGHT / 2 for text in texts]
    with style.context([STYLE, {"ytick.labelsize": LETTER_SIZE, "axes.grid.axis": "x"}]):
        figure = Drawing((PAGE, height := sum(sizes) + 0.95))
        figure.subplots_adjust(left=TEXT_WIDTH / PAGE, right=0.985, top=1 - 0.45 / height, bottom=0.4 / height)
        axes = figure.add_subplot()
        _rows(axes, entries, texts, sizes)
        axes.set_title(entries[0].paper, loc="left", fontweight="bold")
        axes.set_xlabel("effect in the claimed direction (mostly points)")
        _explain(figure)
        save_png(figure, path)


def _rows(axes: Axes, entries: Sequence[Entry], texts: Sequence[str], sizes: Sequence[float]) -> None:
    """Draw the rows of a paper from top to bottom, each as high as its text."""
    middle, middles = 0.0, []
    for size in sizes:
        middles.append(middle + size / 2)
        middle += size
    for at, entry in zip(middles, entries, strict=True):
        tried = {scale: found for scale, found in entry.findings.items() if found.verdict in COLOURS}
        for number, (scale, found) in enumerate(tried.items()):
            place = at + LINE_HEIGHT / 2 * (number - (len(tried) - 1) / 2)
            shape, colour = SHAPES.get(scale, "o"), COLOURS[found.verdict]
            axes.errorbar(found.effect, place, xerr=found.half_width, fmt=shape, color=colour, **LOOK)
        axes.plot(entry.best.paper, at, "D", color="black", markerfacecolor="none", markersize=3.5)
    axes.set_xscale("symlog", linthresh=LINEAR_UP_TO, linscale=0.5)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(middles, texts)
    axes.set_ylim(middle, 0)
    axes.tick_params(axis="y", length=0)
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.set_xticks([], minor=True)


def _explain(figure: Figure) -> None:
    """Add the legend at the top."""
    from matplotlib.lines import Line2D

    marks = {"the paper": ("D", "black", "none"), "ours, full scale": (SHAPES[FULL], "black", "black")}
    marks |= {"ours, laptop scale": ("o", "black", "black")}
    marks |= {verdict: ("o", colour, colour) for verdict, colour in COLOURS.items()}
    look: Any = {"linestyle": "", "markersize": 3.5}
    lines = [
        Line2D([], [], marker=shape, color=colour, markerfacecolor=fill, label=text, **look)
        for text, (shape, colour, fill) in marks.items()
    ]
    figure.legend(handles=lines, loc="upper center", ncols=len(lines), fontsize=LETTER_SIZE, handlelength=1)
