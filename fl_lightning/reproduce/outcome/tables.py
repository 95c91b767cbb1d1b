"""Write an experiment's tables: for the terminal, as Markdown, as HTML."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from fl_lightning.report import elements
from fl_lightning.report.numbers import fixed, fixed_interval, p_value, significant
from fl_lightning.report.statistics import label
from fl_lightning.report.templates import environment, render
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.outcome.numbers import MINUS, ROUNDS_TO, VARIANCE
from fl_lightning.reproduce.outcome.verdict import MOST_SEEDS, Finding
from fl_lightning.runs.catalogue import metric_and_factor

HERE = Path(__file__).parent
CLAIMS = ["claim", "verdict", "ours", "paper", "unit", "seeds", "p", "needed"]
DIFFERENCE = " − paper"  # ends the head of the column with a measure's difference
DIGITS = {100.0: 2, 1.0: 4}  # digits after the point by a measure's factor: 2 in per cent, else 4; but 1 for rounds


@dataclass(frozen=True, eq=False)
class Page:
    """Holds the contents of an experiment's tables: numbers, findings and facts.

    Attributes:
        experiment: the experiment.
        compared: our numbers beside the paper's, see :func:`fl_lightning.reproduce.outcome.numbers.compare`.
        findings: one finding for each claim, in the order of the claims.
        facts: facts about the runs, in a line each.
        image: the picture as PNG, with an SVG beside it; None for none.
    """

    experiment: Experiment
    compared: pd.DataFrame
    findings: Sequence[Finding]
    facts: Sequence[str] = ()
    image: Path | None = None


def lines(compared: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Write head and rows of a comparison: labels, seeds, then each measure's mean ± half width of the interval.

    If the paper prints any number of a measure, the paper's number and the difference follow.
    """
    if compared.empty:
        return [], []
    keys = [str(name) for name in compared.columns[: list(compared.columns).index("measure")]]
    labels = keys if compared["round"].nunique() > 1 else keys[:-1]
    measures = list(compared["measure"].unique())
    printed = {name for name in measures if compared.loc[compared["measure"] == name, "paper"].notna().any()}
    head = [*labels, "seeds"]
    for name in measures:
        head.append(name)
        if name in printed:
            head += [f"{name} paper", f"{name}{DIFFERENCE}"]
    rows = []
    for _, cell in compared.groupby(keys, sort=False, dropna=False):
        row = [label(cell.iloc[0][name]) for name in labels]
        row.append(str(int(cell["seeds"].max())))
        for name, numbers in zip(measures, cell.to_dict("records"), strict=True):
            digits = 1 if name.startswith(ROUNDS_TO) else DIGITS[_factor(name)]
            row.append(fixed_interval(numbers["mean"], numbers["half_width"], digits))
            if name in printed:
                row += [fixed(numbers["paper"], digits), fixed(numbers["difference"], digits, "+")]
        rows.append(row)
    return head, rows


def _factor(measure: str) -> float:
    """Return the factor between a measure and the metric: 100 for shares in per cent. A difference has its first's."""
    return metric_and_factor(measure.split(MINUS)[0].split(VARIANCE)[0])[1]


def terminal(page: Page) -> list[Table]:
    """Make Rich tables of the numbers and, if there are any, of the claims."""
    head, rows = lines(page.compared)
    # A line break after the first word, such as "top1" in "top1 paper".
    head = [name.replace(" ", "\n", 1) for name in head]
    tables = [framed(page.experiment.source, head, rows, caption=page.experiment.metric)]
    if page.findings:
        tables.append(framed("claims", CLAIMS, claim_rows(page), "left"))
    return tables


def claim_rows(page: Page) -> list[list[str]]:
    """Write the rows of the table of claims, whose columns are CLAIMS."""
    rows = []
    for claim, finding in zip(page.experiment.claims, page.findings, strict=True):
        rows.append([claim.text, *row_of_finding(claim, finding)])
    return rows


def row_of_finding(claim: Claim, finding: Finding) -> list[str]:
    """Write a finding: its verdict with the reason, then its numbers, under the heads of CLAIMS after the first.

    Numbers that there are not are dashes: of a claim that is not run or not tested, or that the paper prints no number
    for.
    """
    unit = "points" if _factor(claim.measure) == 100 else claim.measure
    if VARIANCE in claim.measure:
        unit = "points²"
    if claim.along:
        unit = f"{unit} a step of {claim.along.lstrip('-')}"
    needed = str(finding.needed or "–")
    if finding.needed > MOST_SEEDS:
        needed = f"> {MOST_SEEDS}"
    return [
        _verdict_with_reason(finding),
        _effect(finding),
        significant(finding.paper, 3, "+"),
        unit,
        str(finding.seeds or "–"),
        p_value(finding.p),
        needed,
    ]


def _verdict_with_reason(finding: Finding) -> str:
    """Write "holds* (the comparison that decides): the reason"; the star is for Holm's correction."""
    text = finding.verdict
    if finding.starred:
        text += "*"
    if finding.compared:
        text += f" ({finding.compared})"
    if finding.why:
        text += f": {finding.why}"
    return text


def _effect(finding: Finding) -> str:
    """Write an effect with half the width of its interval, if there is one."""
    effect = significant(finding.effect, 3, "+")
    if math.isnan(finding.effect) or math.isnan(finding.half_width):
        return effect
    return f"{effect} ± {significant(finding.half_width, 2)}"


def framed(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    justify: Literal["left", "right"] = "right",
    caption: str = "",
) -> Table:
    """Make a Rich table of text, in which brackets are no markup; no text is cut, however narrow the terminal."""
    table = Table(title=Text(title), caption=Text(caption), box=SIMPLE, padding=(0, 1, 0, 0))
    for name in head:
        table.add_column(Text(name), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def markdown(page: Page) -> str:
    """Write a page in Markdown: source, facts about the runs, numbers, claims, the PNG beside the page, notes."""
    experiment = page.experiment
    about = f"{experiment.claim} ({experiment.metric})" if experiment.claim else experiment.metric
    head, rows = lines(page.compared)
    compared = "\n".join(elements.pipes(head, rows)) if head else ""
    claims = "\n".join(elements.pipes(CLAIMS, claim_rows(page))) if page.findings else ""
    return page_from("table.md.j2", page=page, about=about, compared=compared, claims=claims)


def page_from(template: str, **values: Any) -> str:
    """Write a page in Markdown from a template beside this module."""
    options: Any = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    made = Environment(loader=FileSystemLoader(HERE), autoescape=False, undefined=StrictUndefined, **options)
    return made.get_template(template).render(**values)


def html(page: Page) -> str:
    """Write the page of :func:`markdown` in the report's style as HTML that needs no other file."""
    figure = ""
    if page.image:
        figure = base64.b64encode(page.image.with_suffix(".svg").read_bytes()).decode()
    head, rows = lines(page.compared)
    compared = elements.Table(head, rows, page.experiment.metric)
    claims = elements.Table(CLAIMS, claim_rows(page), "Claims", words=True)
    template = environment(HERE).get_template("table.html.j2")
    return render(template, title=page.experiment.source, page=page, compared=compared, claims=claims, figure=figure)
