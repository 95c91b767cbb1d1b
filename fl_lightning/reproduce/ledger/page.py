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
from fl_lightning.reproduce.experiments.experiment import Experiment
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
LETTERS_A_LINE = 62  # letters in a line of a claim's text
LINE_HEIGHT = 0.105  # height of such a line in inches
TEXT_WIDTH = 3.3  # width of the claims' texts in inches
LETTER_SIZE = 6  # size of their letters in points
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
    entries = findings.ledger(out)
    papers = by_paper(entries)
    console = Console()
    for paper, own in papers.items():
        rows = [_claim_row(entry) for entry in _by_verdict(own)]
        console.print(tables.framed(paper, HEAD, rows, "left"))
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


def _by_verdict(entries: Sequence[Entry]) -> list[Entry]:
    """Sort entries by their verdicts, in the order of VERDICTS."""
    return sorted(entries, key=lambda entry: VERDICTS.index(entry.best.verdict))


def _claim_row(entry: Entry) -> list[str]:
    """Write a claim as a row with the columns of HEAD, at the scale at which it counts."""
    verdict, ours, paper, _, seeds, *_ = tables.row_of_finding(entry.claim, entry.best)
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
    papers = by_paper(entries)
    written = page.with_suffix(".yaml")
    said = read_yaml(written, written.read_text(encoding="utf-8")) if written.is_file() else {}
    rows = []
    for paper, *counts in _tally(papers):
        about = said.get(paper, {})
        fits = about.get("verdicts") == [int(count) for count in counts]
        rows.append([f"[{paper}](#{paper})", about["believe"] if fits else "", *counts])
    return tables.page_from(
        "ledger.md.j2",
        summary=findings.summary(entries),
        chance=findings.chance(entries),
        tally="\n".join(pipes(["paper", "what to believe", *VERDICTS], rows)),
        papers={paper: _paper_section(own, out, page) for paper, own in papers.items()},
        name=page.stem,
    )


def _paper_section(own: Sequence[Entry], out: Path, page: Path) -> dict[str, Any]:
    """Write the parts of a paper's section, by their names in the template."""
    by_experiment = _by_experiment(own)
    return {
        "table": _table_of_claims(own, out, page),
        "picture": _tested(own),
        "gate": _table_of_gate(by_experiment, out),
        "numbers": [_experiment_section(claims, out, page) for claims in by_experiment],
    }


def _by_experiment(own: Sequence[Entry]) -> list[list[Entry]]:
    """Divide a paper's entries by experiment; those of one experiment follow each other."""
    return [list(group) for _, group in itertools.groupby(own, key=lambda entry: entry.experiment.id)]


def _table_of_claims(own: Sequence[Entry], out: Path, page: Path) -> str:
    """Write the table of a paper's claims; each names our table, with a link if there is one."""
    rows = []
    for entry in _by_verdict(own):
        folder = findings.folder_of(out, entry.scale, entry.experiment.id)
        has_table = (folder / TABLE).is_file()
        table = f"[{entry.table}]({_link(folder, page)})" if has_table else entry.table
        rows.append([*_claim_row(entry), table])
    return "\n".join(pipes([*HEAD, "table"], rows))


def _table_of_gate(by_experiment: Sequence[Sequence[Entry]], out: Path) -> str:
    """Write the table of what the gate sees of a paper's runs, and how many claims it holds back; "" without runs."""
    rows = []
    for claims in by_experiment:
        first = claims[0]
        for scale in first.findings:
            results = read(findings.folder_of(out, scale, first.experiment.id) / RESULTS)
            if not results.empty:
                held_back = sum(entry.findings[scale].verdict == SCALE for entry in claims)
                row = gate_row(first.experiment, results)
                rows.append([first.table, scale, *row, f"{held_back} of {len(claims)}"])
    if not rows:
        return ""
    return "\n".join(pipes(["table", "scale", *GATE_HEAD, "claims held back"], rows))


def _link(folder: Path, page: Path) -> str:
    return Path(os.path.relpath(folder / TABLE, page.parent)).as_posix()


def _tested(own: Sequence[Entry]) -> list[Entry]:
    """Return the tested claims of a paper in the order of their verdicts."""
    return [entry for entry in _by_verdict(own) if not math.isnan(entry.best.p)]


def _experiment_section(claims: Sequence[Entry], out: Path, page: Path) -> dict[str, Any]:
    """Write an experiment's table; above it, what is smaller at each scale, and links to the tables of our runs."""
    experiment = claims[0].experiment
    notes = [_note_on_scale(experiment, scale, out, page) for scale in claims[0].findings]
    rows = []
    for entry in claims:
        rows += findings.rows(entry)
    table = "\n".join(pipes(findings.HEAD, rows))
    return {"id": experiment.id, "notes": [note for note in notes if note], "table": table}


def _note_on_scale(experiment: Experiment, scale: str, out: Path, page: Path) -> str:
    """Say what is smaller at a scale, with a link to our table; empty for the papers' own scale without a table.

    If runs of the papers' own scale leave cells out, the link tells how many were run; smaller scales tell in a note.
    """
    folder = findings.folder_of(out, scale, experiment.id)
    has_table = (folder / TABLE).is_file()
    if scale == FULL and not has_table:
        return ""
    note = f"{scale.capitalize()} scale"
    if scale != FULL:
        note += f": {scale_of(experiment.config, scale).note}"
    note += "."
    results = read(folder / RESULTS)
    if has_table:
        part = findings.coverage(experiment, results) if scale == FULL else ""
        note += f" [{part or 'Our table'}]({_link(folder, page)})."
    lacking = [] if results.empty else parts_not_recorded(experiment, results)
    if lacking:
        note += f" Not recorded, and so not judged: {', '.join(lacking)}."
    return note


def draw(entries: Sequence[Entry], path: Path) -> None:
    """Draw one row for each tested claim of a paper, effect and interval beside the paper's point; write a PNG.

    If the paper prints or states some of the effects, claims without one are left out.
    """
    from matplotlib import style  # here, because the import takes half a second
    from matplotlib.figure import Figure as Drawing

    tested = _tested(entries)
    entries = [entry for entry in tested if not math.isnan(entry.best.paper)] or tested
    if not entries:
        return
    claims = [f"{entry.table}: {entry.claim.text}" for entry in entries]
    texts = [textwrap.fill(claim, LETTERS_A_LINE) for claim in claims]
    sizes = [LINE_HEIGHT * len(text.splitlines()) + LINE_HEIGHT / 2 for text in texts]
    with style.context([STYLE, {"ytick.labelsize": LETTER_SIZE, "axes.grid.axis": "x"}]):
        height = sum(sizes) + 0.95  # inches: beside the rows, legend and title above, the axis below
        figure = Drawing((PAGE, height))
        figure.subplots_adjust(left=TEXT_WIDTH / PAGE, right=0.985, top=1 - 0.45 / height, bottom=0.4 / height)
        axes = figure.add_subplot()
        _draw_rows(axes, entries, texts, sizes)
        axes.set_title(entries[0].paper, loc="left", fontweight="bold")
        axes.set_xlabel("effect in the claimed direction (mostly points)")
        _add_legend(figure)
        save_png(figure, path)


def _draw_rows(axes: Axes, entries: Sequence[Entry], texts: Sequence[str], sizes: Sequence[float]) -> None:
    """Draw the rows of a paper from top to bottom, each as high as its text."""
    middles = [sum(sizes[:at]) + size / 2 for at, size in enumerate(sizes)]
    for at, entry in zip(middles, entries, strict=True):
        finding = entry.best
        shape = SHAPES.get(entry.scale, "o")
        axes.errorbar(finding.effect, at, xerr=finding.half_width, fmt=shape, color=COLOURS[finding.verdict], **LOOK)
        axes.plot(finding.paper, at, "D", color="black", markerfacecolor="none", markersize=3.5)
    axes.set_xscale("symlog", linthresh=LINEAR_UP_TO, linscale=0.5)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(middles, texts)
    axes.set_ylim(sum(sizes), 0)
    axes.tick_params(axis="y", length=0)
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.set_xticks([], minor=True)


def _add_legend(figure: Figure) -> None:
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
