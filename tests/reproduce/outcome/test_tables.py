"""Tables in the terminal, as Markdown and as HTML."""

import base64
import io
import math
import re
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from fl_lightning.report.drawing.on_paper import save
from fl_lightning.report.drawing.plots import Axis, Line, Lines
from fl_lightning.report.numbers import NBSP
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.outcome import tables
from fl_lightning.reproduce.outcome.numbers import compare
from fl_lightning.reproduce.outcome.sweep_comparison import fitted
from fl_lightning.reproduce.outcome.tables import Page, row_of_finding
from fl_lightning.reproduce.outcome.verdict import Finding

ROWS = ({"method": "A", "alpha": 0.1, "top1": 50.0}, {"method": "A", "alpha": math.inf, "top1": 90.0})
CLAIMS = (Claim("A <i> B & C", {}, {}),)
EXPERIMENT = Experiment(
    "x/table-1", "X & Y, Table 1", "top-1 (%)", "A <b>", ROWS, "", ("top1",), CLAIMS, notes=("a note",)
)
FINDINGS = [Finding("holds", effect=3.0, half_width=1.234, paper=8.421, seeds=3, p=0.0004)]
TOLD = ["A <i> B & C", "holds", "+3 ± 1.2", "+8.42", "points", "3", "< 0.001", "–"]


def results(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame({"method": ["A", "A", "A"], "alpha": [0.1, 0.1, math.inf], **columns})


COMPARED = compare(EXPERIMENT, results(round=[5, 5, 5], seed=[1, 2, 1], top1=[40.0, 42.0, 91.5]))
# 40 and 42: mean 41, error 1, t(0.975, 1) = 12.706.
HEAD = ["method", "alpha", "seeds", "top1", "top1 paper", "top1 − paper"]
LINES = [["A", "0.1", "2", "41.00 ± 12.71", "50.00", "−9.00"], ["A", "IID", "1", "91.50", "90.00", "+1.50"]]


def cells(page: str) -> list[list[list[str]]]:
    """The texts in the cells of each table."""
    rows = [re.findall("<tr.*?</tr>", table, re.DOTALL) for table in re.findall("<table.*?</table>", page, re.DOTALL)]
    return [
        [[unescape(cell) for cell in re.findall(r"<(?:td|th)\b[^>]*>(.*?)</", row, re.DOTALL)] for row in table]
        for table in rows
    ]


def test_several_rounds_are_a_column() -> None:
    """The round is no column where it is the same for all."""
    assert tables.lines(COMPARED) == (HEAD, LINES)
    head, rows = tables.lines(compare(EXPERIMENT, results(round=[5, 7, 7], seed=[1, 1, 1], top1=[1.0, 2.0, 3.0])))
    assert head[:4] == ["method", "alpha", "round", "seeds"]
    assert [row[2] for row in rows] == ["5", "7", "7"]


def test_nothing_printed_no_empty_columns() -> None:
    """A sweep's table has ours alone; a measure that the paper prints keeps its columns beside one that it does not."""
    sweep = Experiment("mine", "Sweep of mine", "top1", "", (), "", ("top1",))
    ours = results(round=[5, 5, 5], seed=[1, 2, 1], top1=[40.0, 42.0, 91.5], **{"val/loss": [0.5, 0.7, 0.12345]})
    assert tables.lines(compare(sweep, ours)) == (HEAD[:4], [row[:4] for row in LINES])
    both = Experiment("x", "X", "", "", ROWS, "", ("top1", "val/loss"))
    head, rows = tables.lines(compare(both, ours))
    assert head == [*HEAD, "val/loss"]
    assert rows[1] == [*LINES[1], "0.1235"]
    assert tables.markdown(Page(sweep, compare(sweep, ours), [])).startswith("# Sweep of mine\n\ntop1\n")
    assert len(tables.terminal(Page(sweep, compare(sweep, ours), []))) == 1, "no claims"


def test_cosines_and_factors_keep_their_digits() -> None:
    """FedLAW's γ of 0.9472 and 0.9493 are two numbers; FedAvg has none."""
    rows = ({"method": "A", "alpha": 0.1, "gamma_learned": 0.9472},)
    gamma = Experiment("x", "X", "", "", rows, "", ("gamma_learned",))
    learned = results(round=[5, 5, 5], seed=[1, 2, 1], gamma_learned=[0.9493, math.nan, math.nan])
    assert tables.lines(compare(gamma, learned))[1] == [
        ["A", "0.1", "1", "0.9493", "0.9472", "+0.0021"],
        ["A", "IID", "0", "–", "–", "–"],
    ]


def test_markdown_has_everything() -> None:
    """A label may have what would end a cell."""
    page = Page(EXPERIMENT, COMPARED.assign(method="a|b"), FINDINGS, ["2 of 3 runs finished"], Path("out/curves.png"))
    assert tables.markdown(page) == (
        "# X & Y, Table 1\n\nA <b> (top-1 (%))\n\n- 2 of 3 runs finished\n\n"
        "| method | alpha | seeds | top1 | top1 paper | top1 − paper |\n| --- | --- | --- | --- | --- | --- |\n"
        "| a\\|b | 0.1 | 2 | 41.00 ± 12.71 | 50.00 | −9.00 |\n| a\\|b | IID | 1 | 91.50 | 90.00 | +1.50 |\n\n"
        "| claim | verdict | ours | paper | unit | seeds | p | needed |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| A <i> B & C | holds | +3 ± 1.2 | +8.42 | points | 3 | < 0.001 | – |\n\n"
        "![x/table-1](curves.png)\n\n- a note\n"
    )
    bare = Experiment("x", "X", "top-1", "", (), "", ("top1",))
    assert tables.markdown(Page(bare, pd.DataFrame(), [])) == "# X\n\ntop-1\n\n\nNo run is finished.\n"


def test_html_has_everything_and_loads_nothing(tmp_path: Path) -> None:
    """The picture is within the page, loads nothing either, and has its text."""
    points = pd.DataFrame({"mean": [0.25, 0.5], "low": math.nan, "high": math.nan, "seeds": 1}, index=[1, 2])
    save(Lines(Axis("round"), Axis("accuracy"), [Line("A <b>", points), Line("B", points)]), tmp_path, "curves")
    facts = ["--grid a=<1>", "`reproduce <x>`"]
    text = tables.html(Page(EXPERIMENT, COMPARED, FINDINGS, facts, tmp_path / "curves.png"))
    assert cells(text) == [[HEAD, *LINES], [tables.CLAIMS, TOLD]]
    *others, drawn = sorted(re.findall(r'\b(?:src|href|srcset|data|action)="([^"]*)"', text), key=len)
    assert sorted(others) == ["#results", "data:,"]
    assert not re.search("<(?:script|iframe|object)", text)
    kind, _, code = drawn.partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert b">A &lt;b&gt;</text>" in base64.b64decode(code)
    assert not any(word in text for word in ("http:", "https:", "@import", "url("))
    for words in (
        "<h1>X &amp; Y, Table 1</h1>",
        "<strong>The paper's claim:</strong> A &lt;b&gt;</p>",
        '<p class="caption">top-1 (%)</p>',
        "<li>--grid a=&lt;1&gt;</li>\n<li><code>reproduce &lt;x&gt;</code></li>",
        "<li>a note</li>",
        'alt="X &amp; Y, Table 1: curves of the runs"',
    ):
        assert words in text
    bare = tables.html(Page(EXPERIMENT, pd.DataFrame(), FINDINGS))
    assert "No run is finished." in bare
    assert cells(bare) == [[tables.CLAIMS, TOLD]]


def printed(page: Page, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    for table in tables.terminal(page):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_narrow_terminal_cuts_nothing() -> None:
    """Two measures of a paper beside each other are wider than 60 columns; all letters are still there."""
    rows = ({"method": "FedAvg+GH", "alpha": 0.1, "top1": 88.44, "top3": 97.69},)
    both = Experiment("x", "X", "", "", rows, "", ("top1", "top3"), CLAIMS)
    ours = pd.DataFrame({"method": "FedAvg+GH", "alpha": 0.1, "round": 5, "seed": [1, 2], "top1": 79.5, "top3": 96.5})
    compared = compare(both, ours)
    shown = printed(Page(both, compared, FINDINGS), 60)
    assert "…" not in shown
    letters = sorted("".join(shown.split()).replace("─", ""))
    told = [*tables.lines(compared)[0], *tables.lines(compared)[1][0], "X", "claims", *tables.CLAIMS]
    assert letters == sorted("".join("".join([*told, *TOLD]).split()))


def test_terminal_prints_brackets_as_they_are() -> None:
    """A label like a YAML list is no markup, nor a source."""
    experiment = Experiment("x", "Sweep [red]", "", "", ROWS, "", ("top1",), CLAIMS)
    text = printed(Page(experiment, COMPARED.assign(method="[bold]"), FINDINGS), 200)
    assert all(cell in text for cell in [*" ".join(HEAD).split(), *LINES[0][1:], *TOLD, "Sweep [red]", "[bold]"])


@pytest.mark.parametrize(("width", "costs"), [(80, 1), (100, 3), (120, 3), (170, 3)])
def test_a_comparison_keeps_its_numbers_whole(width: int, costs: int) -> None:
    """The last costs go first; a wide terminal breaks no head."""
    head = ["method", "last, %", "last − FedAvg, points", "mean over rounds, %", "mean − FedAvg, points", "seeds"]
    head += ["rounds to 60 %", "sent until 60 %", "trained until 60 %"]
    fedavg = ["FedAvg", "60.2 ± 5.7", "", "48.5 ± 4.7", "", "5", "1 of 5 seeds", "–", "–"]
    gh = ["GH", "76.2 ± 2.4", "+16.1 ± 4.9, p = 0.0024", "62.7 ± 3.8", "+14.2 ± 3.6, p < 0.001", "5", "6"]
    rows = [fedavg, [*gh, "385.8 MB", "16 s"]]
    rows = [[re.sub(r"(?<!,) (?!\()", NBSP, cell) for cell in row] for row in rows]
    file = io.StringIO()
    Console(file=file, width=width).print(tables.framed("", *fitted(head, rows, width)))
    assert "…" not in file.getvalue()
    words = file.getvalue().split()
    assert {"60.2±5.7", "62.7±3.8", "+16.1±4.9", "p=0.0024", "+14.2±3.6", "p<0.001", "6"} <= set(words)
    assert ["385.8" in words, "16" in words] == [costs > 1, costs > 2]
    assert (fitted(head, rows, width)[0] == head) == (width == 170)


@pytest.mark.parametrize(
    ("finding", "cells"),
    [
        (Finding("not run", "no run is finished"), "not run: no run is finished|–|–|points|–|–|–"),
        (
            Finding("holds", compared="A against B", effect=-0.5, half_width=0.25, seeds=5, p=0.023, starred=True),
            "holds* (A against B)|−0.5 ± 0.25|–|points|5|0.023|–",
        ),
        (Finding("open", effect=2.0, paper=3.0, seeds=1, needed=3), "open|+2|+3|points|1|–|3"),
        (Finding("open", effect=2.0, half_width=9.0, seeds=3, needed=1001, p=1.0), "open|+2 ± 9|–|points|3|1|> 1000"),
    ],
)
def test_a_finding_is_told_in_seven_cells(finding: Finding, cells: str) -> None:
    assert row_of_finding(Claim("", {}, {}), finding) == cells.split("|")
    claim = Claim("", {}, {}, measure="val/loss", along="-alpha")
    assert row_of_finding(claim, finding)[3] == "val/loss a step of alpha"
