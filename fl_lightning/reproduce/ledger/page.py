"""Print the ledger, and write it as a page with a picture."""

from __future__ import annotations

import itertools
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fl_lightning.report.drawing.on_paper import PAGE, STYLE
from fl_lightning.report.elements import pipes
from fl_lightning.reproduce.experiments.scale import scale_of
from fl_lightning.reproduce.ledger import findings
from fl_lightning.reproduce.ledger.findings import FULL, Entry
from fl_lightning.reproduce.outcome import tables
from fl_lightning.reproduce.outcome.gate import GATE_HEAD, gate_row, parts_not_recorded
from fl_lightning.reproduce.outcome.numbers import RESULTS, read
from fl_lightning.reproduce.outcome.verdict import HOLDS, OPEN, OPPOSITE, SCALE, TOO_SMALL, VERDICTS
from fl_lightning.runs.folder.yaml_text import read_yaml
from fl_lightning.runs.pictures import save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {HOLDS: "#0072b2", TOO_SMALL: "#56b4e9", OPPOSITE: "#d55e00", OPEN: "#888888"}  # Okabe and Ito's, and grey
TABLE = "table.md"  # name of an experiment's table in the folder of its results
HEAD = ["verdict", "claim", "ours", "paper", "seeds", "scale"]
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
        file: path of the page in Markdown; empty for none. Beside it are ``<name>-<paper>.png``, one for each paper
            with a tested claim.

    Returns:
        The exit status, 0.

    Raises:
        ConfigurationError: a results file cannot be read.
    """
    entries, console = findings.ledger(out), Console()
    papers = by_paper(entries)
    for paper, own in papers.items():
        console.print(tables.framed(paper, HEAD, [*map(_row, _ordered(own))], "left"))
    console.print(tables.framed("claims", ["paper", *VERDICTS], _tally(papers)))
    print(findings.summary(entries))
    if file:
        page = Path(file)
        page.parent.mkdir(parents=True, exist_ok=True)
        for paper, claims in papers.items():
            draw(claims, page.with_name(f"{page.stem}-{paper}.png"))
        page.write_text(page_of(entries, out, page), encoding="utf-8")
        print(f"ledger: {page}")
    return 0


def by_paper(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Divide the entries by paper."""
    return {paper: list(own) for paper, own in itertools.groupby(entries, key=lambda entry: entry.paper)}


def _ordered(entries: Sequence[Entry]) -> list[Entry]:
    """Sort entries by their verdicts, in the order of VERDICTS."""
    return sorted(entries, key=lambda entry: VERDICTS.index(entry.best.verdict))


def _row(entry: Entry) -> list[str]:
    """Write a claim as a row with the columns of HEAD, at the scale at which it counts."""
    verdict, ours, paper, _, seeds, *_ = tables.told(entry.claim, entry.best)
    return [verdict, entry.claim.text, ours, paper, seeds, entry.scale]


def _tally(papers: Mapping[str, Sequence[Entry]]) -> list[list[str]]:
    return [[paper, *map(str, findings.counts(own).values())] for paper, own in papers.items()]


def page_of(entries: Sequence[Entry], out: Path, page: Path) -> str:
    """Write the ledger's text for a path, with links to the tables of our runs below ``out``.

    The page has counts by paper, each with what a reader should believe: ``<name>.yaml`` beside the page may say so, as
    {paper: {verdicts: [counts in the order of VERDICTS], believe: a sentence}}. A sentence for other counts is left
    out. Then it has, for each paper, a picture beside the page, the claims in the order of their verdicts, and all
    numbers.
    """
    papers, written = by_paper(entries), page.with_suffix(".yaml")
    said = read_yaml(written, written.read_text(encoding="utf-8")) if written.is_file() else {}
    rows = []
    for paper, *counts in _tally(papers):
        about = said.get(paper, {})
        fits = about.get("verdicts") == [int(count) for count in counts]
        rows.append([f"[{paper}](#{paper})", about["believe"] if fits else "", *counts])
    sections = {
        paper: {
            "table": _linked(own, out, page),
            "picture": _tested(own),
            "gate": _gate(own, out),
            "numbers": [
                _section(list(mine), out, page) for _, mine in itertools.groupby(own, lambda e: e.experiment.id)
            ],
        }
        for paper, own in papers.items()
    }
    return tables.page_from(
        "ledger.md.j2",
        summary=findings.summary(entries),
        chance=findings.chance(entries),
        tally="\n".join(pipes(["paper", "what to believe", *VERDICTS], rows)),
        papers=sections,
        name=page.stem,
    )


def _linked(own: Sequence[Entry], out: Path, page: Path) -> str:
    """Write the table of a paper's claims; each names our table, with a link if there is one."""
    rows = []
    for entry in _ordered(own):
        folder, name = findings.folder_of(out, entry.scale, entry.experiment.id), entry.experiment.id.partition("/")[2]
        rows.append([*_row(entry), f"[{name}]({_link(folder, page)})" if (folder / TABLE).is_file() else name])
    return "\n".join(pipes([*HEAD, "table"], rows))


def _gate(own: Sequence[Entry], out: Path) -> str:
    """Write the table of what the gate sees of a paper's runs, and how many claims it holds back."""
    rows = []
    for _, group in itertools.groupby(own, lambda entry: entry.experiment.id):
        mine = list(group)
        experiment = mine[0].experiment
        for scale in mine[0].findings:
            results = read(findings.folder_of(out, scale, experiment.id) / RESULTS)
            held = sum(entry.findings[scale].verdict == SCALE for entry in mine)
            if not results.empty:
                name = experiment.id.partition("/")[2]
                rows.append([name, scale, *gate_row(experiment, results), f"{held} of {len(mine)}"])
    return "\n".join(pipes(["table", "scale", *GATE_HEAD, "claims held back"], rows)) if rows else ""


def _link(folder: Path, page: Path) -> str:
    return Path(os.path.relpath(folder / TABLE, page.parent)).as_posix()


def _tested(own: Sequence[Entry]) -> list[Entry]:
    """Return the tested claims of a paper in the order of their verdicts."""
    return [entry for entry in _ordered(own) if not math.isnan(entry.best.p)]


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
            link = f" [{part or 'Our table'}]({_link(folder, page)})."
        lacks = [] if results.empty else parts_not_recorded(experiment, results)
        told = f" Not recorded, and so not judged: {', '.join(lacks)}." if lacks else ""
        if link or smaller:
            notes.append(f"{scale.capitalize()} scale{smaller}.{link}{told}")
    table = pipes(findings.HEAD, [row for entry in mine for row in findings.rows(entry)])
    return {"id": experiment.id, "notes": notes, "table": "\n".join(table)}


def draw(entries: Sequence[Entry], path: Path) -> None:
    """Draw one row for each tested claim of a paper, effect and interval beside the paper's point; write a PNG.

    If the paper prints or states some of the effects, claims without one are left out.
    """
    from matplotlib import style  # here, because the import takes half a second
    from matplotlib.figure import Figure as Drawing

    tested = _tested(entries)
    if not (entries := [entry for entry in tested if not math.isnan(entry.best.paper)] or tested):
        return
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
    middles = [sum(sizes[:at]) + size / 2 for at, size in enumerate(sizes)]
    for at, entry in zip(middles, entries, strict=True):
        found, shape = entry.best, SHAPES.get(entry.scale, "o")
        axes.errorbar(found.effect, at, xerr=found.half_width, fmt=shape, color=COLOURS[found.verdict], **LOOK)
        axes.plot(found.paper, at, "D", color="black", markerfacecolor="none", markersize=3.5)
    axes.set_xscale("symlog", linthresh=LINEAR_UP_TO, linscale=0.5)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(middles, texts)
    axes.set_ylim(sum(sizes), 0)
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
