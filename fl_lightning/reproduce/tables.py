"""Write an experiment's tables: for the terminal, as Markdown, as HTML."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pandas as pd
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from fl_lightning.report import parts
from fl_lightning.report.templates import environment, render
from fl_lightning.reproduce.claims import Verdict
from fl_lightning.reproduce.papers import Experiment
from fl_lightning.runs.catalogue import measured
from fl_lightning.runs.seeds import label

HERE = Path(__file__).parent
NOTHING = "No run is finished."
CLAIMS = ["claim", "ours", "evidence"]
DIGITS = {100.0: 2, 1.0: 4}  # digits after the point by a measure's factor: 2 in per cent, else 4


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
            digits = DIGITS[measured(name)[1]]
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


def terminal(experiment: Experiment, compared: pd.DataFrame, verdicts: Sequence[Verdict]) -> list[Table]:
    """Make Rich tables of the numbers and, if there are any, of the claims."""
    head, rows = lines(compared)
    # A line break after the first word, such as "top1" in "top1 paper".
    head = [name.replace(" ", "\n", 1) for name in head]
    tables = [framed(experiment.source, head, rows, caption=experiment.metric)]
    return [*tables, framed("claims", CLAIMS, judged(verdicts), "left")] if verdicts else tables


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


def markdown(
    experiment: Experiment,
    compared: pd.DataFrame,
    verdicts: Sequence[Verdict],
    facts: Sequence[str],
    image: Path | None = None,
) -> str:
    """Write a page in Markdown: source, facts about the runs, numbers, claims, the PNG beside the page, notes."""
    text = [f"# {experiment.source}", "", about(experiment), ""]
    text += [*(f"- {fact}" for fact in facts), "", *_pipes(*lines(compared)), ""]
    if verdicts:
        text += [*_pipes(CLAIMS, judged(verdicts)), ""]
    text += [f"![{experiment.id}]({image.name})"] if image else []
    text += ["", *(f"- {note}" for note in experiment.notes)]
    return "\n".join(text).rstrip() + "\n"


def _pipes(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not head:
        return [NOTHING]
    return parts.pipes(head, rows)


def about(experiment: Experiment) -> str:
    """Describe the experiment's claim and metric in one line."""
    return f"{experiment.claim} ({experiment.metric})" if experiment.claim else experiment.metric


def judged(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Return the rows of the table of claims; CLAIMS is the head."""
    return [[verdict.text, verdict.verdict, verdict.evidence] for verdict in verdicts]


def html(
    experiment: Experiment,
    compared: pd.DataFrame,
    verdicts: Sequence[Verdict],
    facts: Sequence[str],
    image: Path | None = None,
) -> str:
    """Write the page of :func:`markdown` in the report's style as HTML that needs no other file."""
    drawn = base64.b64encode(image.with_suffix(".svg").read_bytes()).decode() if image else ""
    template = environment(HERE).get_template("table.html.j2")
    return render(
        template,
        title=experiment.source,
        claim=experiment.claim,
        facts=facts,
        compared=parts.Table(*lines(compared), experiment.metric),
        judged=parts.Table(CLAIMS, judged(verdicts), "Claims", words=True),
        figure=drawn,
        notes=experiment.notes,
        nothing=NOTHING,
    )
