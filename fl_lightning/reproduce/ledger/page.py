"""Print the ledger, and write it as a page with a picture."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console

from fl_lightning.report.drawing.on_paper import PAGE, STYLE
from fl_lightning.report.elements import pipes
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.experiments.scale import scale_of
from fl_lightning.reproduce.ledger import findings
from fl_lightning.reproduce.ledger.findings import FULL, Entry, apart
from fl_lightning.reproduce.outcome import tables
from fl_lightning.reproduce.outcome.claims import has
from fl_lightning.reproduce.outcome.gate import GATE_HEAD, gate_row, parts_not_recorded
from fl_lightning.reproduce.outcome.numbers import RESULTS, compare, read
from fl_lightning.reproduce.outcome.stand_in import in_place_of, settings_at
from fl_lightning.reproduce.outcome.verdict import (
    AT_THE_SETTING,
    DIFFERS,
    HOLDS,
    HOLDS_HERE,
    NOT_HERE,
    ON_A_STAND_IN,
    OPEN,
    OPPOSITE,
    TOO_SMALL,
    VERDICTS,
    WITHHELD,
)
from fl_lightning.runs.folder.yaml_text import read_yaml
from fl_lightning.runs.pictures import save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, and grey; on a stand-in, where a verdict says less, the paler ones.
COLOURS = {
    HOLDS: "#0072b2",
    TOO_SMALL: "#e69f00",
    OPPOSITE: "#d55e00",
    DIFFERS: "#009e73",
    HOLDS_HERE: "#56b4e9",
    NOT_HERE: "#cc79a7",
    WITHHELD: "#bbbbbb",
    OPEN: "#666666",
}
HEAD = ["verdict", "claim", "ours", "paper", "where", "numbers"]
OURS = " (ours)"  # ends the name of claims of our own in the table of counts
BELIEVE = "what to believe"
TALLY = ["paper", "claims", "tested at the paper's setting", "run on a stand-in alone", "not run"]
LETTERS_A_LINE = 62  # letters in a line of a claim's text
LINE_HEIGHT = 0.105  # height of such a line in inches
TEXT_WIDTH = 3.3  # width of the claims' texts in inches
LETTER_SIZE = 6  # size of their letters in points
TICKS = (-50, -10, -1, -0.1, 0, 0.1, 1, 10, 50)
LINEAR_UP_TO = 0.1  # effects up to this size are drawn to scale, larger ones logarithmically
LOOK: Any = {"markersize": 3.5, "elinewidth": 0.8}  # of effects
AT_PAPER, STANDS_IN = "s", "o"  # markers of effects at the paper's setting and on a stand-in


def write_ledger(out: Path, file: str) -> int:
    """Print the ledger of the results below a folder; write it to a file with others beside it, if one is named.

    Args:
        out: folder of all results, as ``reproduce --out``.
        file: path of the page in Markdown; empty for none. Beside it are ``<name>-<paper>.md`` with all numbers of a
            paper, and ``<name>-<paper>.png`` for each paper with a tested claim.

    Returns:
        The exit status, 0.

    Raises:
        ConfigurationError: a results file cannot be read.
    """
    entries = findings.ledger(out)
    papers = by_paper(entries)
    console = Console()
    for paper, own in papers.items():
        rows = [_claim_row(entry)[:-1] for entry in _in_order(own)]
        console.print(tables.framed(paper, HEAD[:-1], rows, "left"))
    console.print(tables.framed("claims", TALLY, _tally(entries), "left"))
    print(findings.summary(entries))
    if file:
        page = Path(file)
        page.parent.mkdir(parents=True, exist_ok=True)
        for paper, claims in papers.items():
            draw(claims, page.with_name(f"{page.stem}-{paper}.png"))
        for path, text in pages_of(entries, out, page).items():
            path.write_text(text, encoding="utf-8")
        print(f"ledger: {page}")
    return 0


def by_paper(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Divide the entries by paper."""
    return {paper: list(own) for paper, own in itertools.groupby(entries, key=lambda entry: entry.paper)}


def _in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Sort entries: first those at the paper's setting, then those on a stand-in, by their verdicts; then the rest."""
    places = apart(entries)
    ordered: list[Entry] = []
    for own in (places.at_the_setting, places.on_a_stand_in, places.not_run):
        ordered += sorted(own, key=lambda entry: VERDICTS.index(entry.best.verdict))
    return ordered


def _claim_row(entry: Entry) -> list[str]:
    """Write a claim as a row with the columns of HEAD, at the scale at which it counts."""
    verdict, ours, paper, *_ = tables.row_of_finding(entry.claim, entry.best)
    return [verdict, entry.claim.text, ours, paper, findings.where(entry, entry.scale), entry.table]


def _tally(entries: Sequence[Entry]) -> list[list[str]]:
    """Count the claims of each paper, and of all, in rows with the columns of TALLY; experiments of our own follow."""
    papers = [entry for entry in entries if entry.is_papers]
    rows = [_count(paper, own) for paper, own in by_paper(papers).items()]
    ours = by_paper([entry for entry in entries if not entry.is_papers])
    return [*rows, _count("all papers", papers), *(_count(f"{paper}{OURS}", own) for paper, own in ours.items())]


def _count(name: str, own: Sequence[Entry]) -> list[str]:
    places = apart(own)
    return [
        name,
        str(len(own)),
        _in_words(places.at_the_setting, AT_THE_SETTING),
        _in_words(places.on_a_stand_in, ON_A_STAND_IN),
        str(len(places.not_run)),
    ]


def _in_words(own: Sequence[Entry], verdicts: Sequence[str]) -> str:
    """Write the number of some claims, and of those with each verdict that one of them has: "11: holds 5, open 6"."""
    numbers = findings.numbers(own, verdicts)
    words = ", ".join(f"{verdict} {number}" for verdict, number in numbers.items() if number)
    return f"{len(own)}: {words}" if own else "0"


def pages_of(entries: Sequence[Entry], out: Path, page: Path) -> dict[Path, str]:
    """Write the texts of the ledger, for a path, and of the pages of numbers beside it, one for each paper.

    The ledger has counts by paper, and what a reader should believe: ``<name>.yaml`` beside the page may say so, as
    {paper: {verdicts: what :meth:`Ledgers.counts` returns, believe: a sentence}}. A sentence for other counts is left
    out. Then it has, for each paper, a picture beside the page, and the claims in the order of their verdicts.
    """
    papers = by_paper(entries)
    ledger = tables.page_from(
        "ledger.md.j2",
        summary=findings.summary(entries),
        chance=findings.chance(entries),
        tally=_table_of_papers(entries, papers, page.with_suffix(".yaml")),
        papers={paper: _paper_section(own, page) for paper, own in papers.items()},
        name=page.stem,
    )
    numbers = {_numbers_page(page, paper): _numbers_of(paper, own, out, page) for paper, own in papers.items()}
    return {page: ledger, **numbers}


def _table_of_papers(entries: Sequence[Entry], papers: Mapping[str, Sequence[Entry]], written: Path) -> str:
    """Write the table of counts by paper, each with a link and with what to believe, if that is written for them."""
    said = read_yaml(written, written.read_text(encoding="utf-8")) if written.is_file() else {}
    rows: list[list[str]] = []
    for name, *counts in _tally(entries):
        paper = name.removesuffix(OURS)
        about = said.get(paper, {})
        is_first = paper in papers and not any(paper in row[0] for row in rows)
        fits = is_first and about.get("verdicts") == apart(papers[paper]).counts()
        rows.append([f"[{name}](#{paper})" if is_first else name, *counts, about["believe"] if fits else ""])
    return "\n".join(pipes([*TALLY, BELIEVE], rows))


def _numbers_page(page: Path, paper: str) -> Path:
    return page.with_name(f"{page.stem}-{paper}.md")


def _paper_section(own: Sequence[Entry], page: Path) -> dict[str, Any]:
    """Write the parts of a paper's section, by their names in the template; each claim has a link to its numbers."""
    rows = []
    for entry in _in_order(own):
        *row, table = _claim_row(entry)
        rows.append([*row, f"[{table}]({_numbers_page(page, entry.paper).name}#{table})"])
    return {"table": "\n".join(pipes(HEAD, rows)), "picture": _tested(own)}


def _numbers_of(paper: str, own: Sequence[Entry], out: Path, page: Path) -> str:
    """Write a paper's page of numbers: what the gate sees, and for each experiment its claims and cells by scale."""
    groups: dict[str, list[Entry]] = {}
    for entry in own:
        groups.setdefault(entry.experiment.id, []).append(entry)
    by_experiment = [*groups.values()]
    return tables.page_from(
        "ledger-numbers.md.j2",
        paper=paper,
        ledger=page.name,
        gate=_table_of_gate(by_experiment, out),
        experiments=[_experiment_section(claims, out) for claims in by_experiment],
    )


def _table_of_gate(by_experiment: Sequence[Sequence[Entry]], out: Path) -> str:
    """Write the table of what the gate sees of a paper's runs, and how many claims it holds back; "" without runs."""
    rows = []
    for claims in by_experiment:
        first = claims[0]
        for scale in first.findings:
            results = read(findings.folder_of(out, scale, first.experiment.id) / RESULTS)
            if not results.empty:
                found = [entry.findings[scale] for entry in claims]
                held_back = sum(finding.verdict == WITHHELD and math.isnan(finding.p) for finding in found)
                row = gate_row(first.experiment, results)
                rows.append([first.table, scale, *row, f"{held_back} of {len(claims)}"])
    if not rows:
        return ""
    return "\n".join(pipes(["table", "scale", *GATE_HEAD, "claims held back"], rows))


def _tested(own: Sequence[Entry]) -> list[Entry]:
    """Return the tested claims of a paper in the order of the ledger."""
    return [entry for entry in _in_order(own) if not math.isnan(entry.best.p)]


def _experiment_section(claims: Sequence[Entry], out: Path) -> dict[str, Any]:
    """Write an experiment's table of claims, and a table of our numbers beside the paper's for each scale."""
    experiment = claims[0].experiment
    rows = []
    for entry in claims:
        rows += findings.rows(entry)
    scales = []
    for scale in claims[0].findings:
        results = read(findings.folder_of(out, scale, experiment.id) / RESULTS)
        if not results.empty:
            scales.append({"note": _note_on(experiment, scale, results), "table": _cells(experiment, scale, results)})
    return {
        "table": claims[0].table,
        "experiment": experiment,
        "claims": "\n".join(pipes(findings.HEAD, rows)),
        "scales": scales,
    }


def _cells(experiment: Experiment, scale: str, results: pd.DataFrame) -> str:
    """Write our numbers beside the paper's; a row of a stand-in says what it was run on, and no difference."""
    compared = compare(experiment, results)
    head, rows = tables.lines(compared)
    settings = [] if scale == FULL else settings_at(replace(experiment, scale=scale))
    if settings:
        points: list[dict[Any, Any]] = compared.loc[:, :"round"].drop_duplicates().to_dict("records")
        shown = [at for at, name in enumerate(head) if not name.endswith(tables.DIFFERENCE)]
        told = []
        for row, point in zip(rows, points, strict=True):
            stand_in = in_place_of([at for at in settings if has(point, at.labels)])
            told.append([*(row[at] for at in shown), str(stand_in or "")])
        head = [*(head[at] for at in shown), "run on"]
        rows = told
    return "\n".join(pipes(head, rows))


def _note_on(experiment: Experiment, scale: str, results: pd.DataFrame) -> str:
    """Say which scale a table of numbers has, what is smaller there, and what the gate could not judge."""
    if scale == FULL:
        note = "**At the paper's setting.**" if experiment.rows else "**At the config's own setting.**"
    else:
        note = f"**On a stand-in** (`--scale {scale}`): {scale_of(experiment.config, scale).note}."
    claims = experiment.claims
    lacking = dict.fromkeys(part for claim in claims for part in parts_not_recorded(experiment, claim, results))
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
    texts = [textwrap.fill(_label(entry), LETTERS_A_LINE) for entry in entries]
    sizes = [LINE_HEIGHT * len(text.splitlines()) + LINE_HEIGHT / 2 for text in texts]
    with style.context([STYLE, {"ytick.labelsize": LETTER_SIZE, "axes.grid.axis": "x"}]):
        height = sum(sizes) + 1.05  # inches: beside the rows, legend and title above, the axis below
        figure = Drawing((PAGE, height))
        figure.subplots_adjust(left=TEXT_WIDTH / PAGE, right=0.985, top=1 - 0.55 / height, bottom=0.4 / height)
        axes = figure.add_subplot()
        _draw_rows(axes, entries, texts, sizes)
        axes.set_title(entries[0].paper, loc="left", fontweight="bold")
        axes.set_xlabel("effect in the claimed direction (mostly points)")
        _add_legend(figure)
        save_png(figure, path)


def _label(entry: Entry) -> str:
    """Write a claim with its table, and what its runs had in place of the paper's data and network."""
    stand_in = entry.best.stand_in
    run_on = f" [{stand_in.data}, {stand_in.network}]" if stand_in else ""
    return f"{entry.table}: {entry.claim.text}{run_on}"


def _draw_rows(axes: Axes, entries: Sequence[Entry], texts: Sequence[str], sizes: Sequence[float]) -> None:
    """Draw the rows of a paper from top to bottom, each as high as its text."""
    middles = [sum(sizes[:at]) + size / 2 for at, size in enumerate(sizes)]
    for at, entry in zip(middles, entries, strict=True):
        finding = entry.best
        shape = STANDS_IN if finding.stand_in else AT_PAPER
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

    marks = {"the paper": ("D", "black", "none"), "ours, at the paper's setting": (AT_PAPER, "black", "black")}
    marks |= {"ours, on a stand-in": (STANDS_IN, "black", "black")}
    marks |= {verdict: (STANDS_IN, colour, colour) for verdict, colour in COLOURS.items()}
    look: Any = {"linestyle": "", "markersize": 3.5}
    lines = [
        Line2D([], [], marker=shape, color=colour, markerfacecolor=fill, label=text, **look)
        for text, (shape, colour, fill) in marks.items()
    ]
    columns = (len(lines) + 1) // 2
    figure.legend(handles=lines, loc="upper center", ncols=columns, fontsize=LETTER_SIZE, handlelength=1)
