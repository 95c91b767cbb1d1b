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
from fl_lightning.report.statistics import label
from fl_lightning.report.templates import environment, render
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.outcome.numbers import MINUS
from fl_lightning.reproduce.outcome.verdict import MOST_SEEDS, Finding
from fl_lightning.runs.catalogue import measured

HERE = Path(__file__).parent
CLAIMS = ["claim", "verdict", "ours", "paper", "unit", "seeds", "p", "needed"]
DIGITS = {100.0: 2, 1.0: 4}  # digits after the point by a measure's factor: 2 in per cent, else 4


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
        head += [name, f"{name} paper", f"{name} − paper"] if name in printed else [name]
    rows = []
    for _, group in compared.groupby(keys, sort=False, dropna=False):
        row = [label(group.iloc[0][name]) for name in labels] + [str(int(group["seeds"].max()))]
        for name, one in zip(measures, group.to_dict("records"), strict=True):
            digits = DIGITS[measured(name.split(MINUS)[0])[1]]
            row.append(with_interval(one["mean"], one["half_width"], digits))
            row += [number(one["paper"], digits), number(one["difference"], digits, "+")] if name in printed else []
        rows.append(row)
    return head, rows


def number(value: float, digits: int, sign: str = "") -> str:
    """Write a number with ``digits`` digits after the point; nan is a dash."""
    return "–" if math.isnan(value) else f"{value:{sign}.{digits}f}"


def with_interval(mean: float, half_width: float, digits: int) -> str:
    """Write ``mean ± half width``, or the mean alone if there is no interval (half width nan)."""
    return number(mean, digits) if math.isnan(half_width) else f"{mean:.{digits}f} ± {half_width:.{digits}f}"


def terminal(page: Page) -> list[Table]:
    """Make Rich tables of the numbers and, if there are any, of the claims."""
    head, rows = lines(page.compared)
    # A line break after the first word, such as "top1" in "top1 paper".
    head = [name.replace(" ", "\n", 1) for name in head]
    tables = [framed(page.experiment.source, head, rows, caption=page.experiment.metric)]
    return [*tables, framed("claims", CLAIMS, judged(page), "left")] if page.findings else tables


def judged(page: Page) -> list[list[str]]:
    """Write the rows of the table of claims, whose columns are CLAIMS."""
    claims = zip(page.experiment.claims, page.findings, strict=True)
    return [[claim.text, *told(claim, found)] for claim, found in claims]


def told(claim: Claim, found: Finding) -> list[str]:
    """Write a finding: its verdict with the reason, then its numbers, under the heads of CLAIMS after the first."""
    of = f" ({found.compared})" if found.compared else ""
    why = f": {found.why}" if found.why else ""
    within = "" if math.isnan(found.half_width) else f" ± {found.half_width:.2g}"
    unit = "points" if measured(claim.measure.split(MINUS)[0])[1] == 100 else claim.measure
    return [
        f"{found.verdict}{'*' * found.starred}{of}{why}",
        "–" if math.isnan(found.effect) else f"{found.effect:+.3g}{within}",
        "–" if math.isnan(found.paper) else f"{found.paper:+.3g}",
        f"{unit} a step of {claim.along.lstrip('-')}" if claim.along else unit,
        str(found.seeds or "–"),
        "–" if math.isnan(found.p) else "< 0.001" if found.p < 0.001 else f"{found.p:.2g}",
        f"> {MOST_SEEDS}" if found.needed > MOST_SEEDS else str(found.needed or "–"),
    ]


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
    head, rows = lines(page.compared)
    about = f"{experiment.claim} ({experiment.metric})" if experiment.claim else experiment.metric
    compared, claims = ("\n".join(elements.pipes(*table)) for table in ((head, rows), (CLAIMS, judged(page))))
    return page_from(
        "table.md.j2", page=page, about=about, compared=compared if head else "", judged=claims if page.findings else ""
    )


def page_from(template: str, **values: Any) -> str:
    """Write a page in Markdown from a template beside this module."""
    options: Any = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    made = Environment(loader=FileSystemLoader(HERE), autoescape=False, undefined=StrictUndefined, **options)
    return made.get_template(template).render(**values)


def html(page: Page) -> str:
    """Write the page of :func:`markdown` in the report's style as HTML that needs no other file."""
    drawn = base64.b64encode(page.image.with_suffix(".svg").read_bytes()).decode() if page.image else ""
    compared = elements.Table(*lines(page.compared), page.experiment.metric)
    claims = elements.Table(CLAIMS, judged(page), "Claims", words=True)
    template = environment(HERE).get_template("table.html.j2")
    return render(template, title=page.experiment.source, page=page, compared=compared, judged=claims, figure=drawn)
