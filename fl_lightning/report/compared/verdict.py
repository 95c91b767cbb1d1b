"""Say in a sentence which method is better, and write the comparison as a table, CSV, Markdown and LaTeX."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import astuple
from html import escape
from typing import Any

import pandas as pd
from rich.filesize import decimal

from fl_lightning.better import how_to_say
from fl_lightning.commands import counted, duration
from fl_lightning.report.compared.comparison import BASELINE, Comparison, Difference, Standing
from fl_lightning.report.compared.methods import CONFLICT, Method
from fl_lightning.report.elements import Table, pipes
from fl_lightning.report.numbers import NBSP, PER_CENT, as_csv, p_value, with_interval, written
from fl_lightning.report.statistics import FEWEST_SEEDS
from fl_lightning.runs.catalogue import AFTER, about
from fl_lightning.runs.config.settings import RULES

NAMED = 4  # largest number of methods that a sentence names for one reason
NO_BASELINE = (
    "No baseline: for one, give the same command with `--trainer.callbacks ConflictMonitor` in place of the rules."
)
# What LaTeX lacks, after pandas has escaped the rest.
LATEX = {"±": r"$\pm$", "−": "$-$", "–": "--", NBSP: "~", "<": "$<$", ">": "$>$"}
HEAD = 12  # number of letters in a line of a head in LaTeX
OF_A_DIFFERENCE = ("difference", "difference_half_width", "p", "paired_seeds")  # endings of columns of numbers
BREAK = "\N{LINE SEPARATOR}"  # in a cell of two lines


def verdict(comparison: Comparison) -> str:
    """Say which methods beat the baseline, by how much and how sure.

    There is no verdict with fewer than three seeds, or if nobody says which values of the metric are better. Of a
    single method, say what it reaches, and on a second line how to get a baseline if it is none itself. A difference
    counts if p < 0.05. The text gives differences in the mean over the rounds, then in the last round.
    """
    words = _Words(comparison)
    others = words.others
    if not others:
        said = words.describe(comparison.standings[0])
    elif words.seeds < FEWEST_SEEDS:
        said = words.explain_few_seeds()
    elif comparison.better is None:
        said = words.explain_unknown()
    elif len(others) == 1:
        said = words.judge_one(others[0])
    else:
        said = words.judge_several()
    return f"{comparison.problem}: {said}" if comparison.problem else said


class _Words:
    """Writes the sentences of one comparison."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.base = comparison.baseline.short
        self.others = comparison.others
        self.seeds = max((standing.apart["mean"].seeds for standing in self.others), default=0)
        metric = about(comparison.metric)
        self.percent = metric.percent
        self.title = metric.title
        if metric.title != comparison.metric:  # a metric that the catalogue lacks keeps its name
            self.title = metric.title[0].lower() + metric.title[1:]
        self.mean = f"mean {self.title} over the rounds"

    def describe(self, standing: Standing) -> str:
        """Say what the only method reaches, and what it leaves of the clients' conflict."""
        last = self.with_unit(standing.last)
        mean = self.with_unit(standing.mean)
        seeds = counted(len(standing.method.runs), "seed")
        said = f"{self.base} ends with a {self.title} of {last}; the mean over the rounds is {mean} ({seeds})."
        if told := conflict([standing.method]):
            said = f"{said} {told}"
        if standing.method.settings.get(RULES, BASELINE) != BASELINE:
            said = f"{said}\n{NO_BASELINE}"
        return said

    def explain_few_seeds(self) -> str:
        """Say that there are too few seeds for a verdict, and which differences they show."""
        if not self.seeds:
            return f"No verdict: no method has a seed in common with {self.base}."
        differences = []
        for standing in self.others:
            if standing.apart["mean"].seeds:
                mean = self.amount(standing.apart["mean"])
                last = self.amount(standing.apart["last"])
                differences.append(f"{standing.method.short} {mean} ({last} after the last round)")
        are = "is" if self.seeds == 1 else "are"
        few = f"{counted(self.seeds, 'seed')} {are} too few, at least {FEWEST_SEEDS} are needed"
        return f"No verdict: {few}. Differences to {self.base} in {self.mean}: {', '.join(differences)}."

    def explain_unknown(self) -> str:
        """Say that nobody says which values are better, how to say it, and which differences there are."""
        differences = [self.with_difference(standing, "mean") for standing in self.others]
        metric = self.comparison.metric
        return (
            f"No verdict: the runs do not say which values of {metric} are better: {how_to_say(metric)}. "
            f"Differences to {self.base} in {self.mean}: {', '.join(differences)} ({self.certainty()})."
        )

    def judge_one(self, standing: Standing) -> str:
        """Say whether the only other method beats the baseline."""
        name = standing.method.short
        mean = standing.apart["mean"]
        last = standing.apart["last"]
        sure = f"{self.edges(mean)}, {_p(mean)}, {counted(mean.seeds, 'seed')}"
        if not mean.is_clear:
            first = f"{name} and {self.base} cannot be told apart in {self.mean}: {self.amount(mean)} ({sure})"
        elif self.is_better(mean):
            first = f"{name} {self.verb_of_better(1)} {self.base} by {self.amount(mean)} of {self.mean} ({sure})"
        else:
            first = f"{name} {self.verb_of_worse(1)} {self.base} by {self.amount(mean)} of {self.mean} ({sure})"
        unclear = "" if last.is_clear else ", not distinguishable"
        return f"{first}; last-round difference {self.amount(last)}{unclear} ({_p(last)})."

    def judge_several(self) -> str:
        """Say which of several other methods beat the baseline, which fall short of it, and which are like it."""
        better, worse, same, few = [], [], [], []
        for standing in self.ranking():
            mean = standing.apart["mean"]
            name = self.with_difference(standing, "mean")
            if mean.is_clear and self.is_better(mean):
                better.append(name)
            elif mean.is_clear:
                worse.append(name)
            elif mean.seeds >= FEWEST_SEEDS:
                same.append(name)
            else:
                few.append(standing.method.short)
        parts = [f"{_name_some(better) or 'No method'} {self.verb_of_better(len(better))} {self.base} in {self.mean}"]
        if worse:
            parts.append(f"{_name_some(worse)} {self.verb_of_worse(len(worse))} {self.base}")
        if same:
            parts.append(f"{_name_some(same)} cannot be told from {self.base}")
        if few:
            parts.append(f"{_name_some(few)} {'has' if len(few) == 1 else 'have'} too few seeds")
        return f"{'; '.join(parts)} ({self.certainty()}). {self.judge_last_round()}"

    def ranking(self) -> list[Standing]:
        """Sort the methods other than the baseline by their differences to it in the mean over the rounds."""
        sign = 1 if self.comparison.better == "lower" else -1
        return sorted(self.others, key=lambda standing: sign * standing.apart["mean"].mean)

    def certainty(self) -> str:
        """Say how many seeds there are, and for how many tests the p values of several methods are corrected."""
        tests = sum(standing.apart["mean"].seeds >= FEWEST_SEEDS for standing in self.others)
        correction = f"p values corrected for {counted(tests, 'comparison')} by Holm's method"
        return f"{counted(self.seeds, 'seed')}, {correction}"

    def judge_last_round(self) -> str:
        """Say which of several methods differ from the baseline after the last round."""
        clear = [standing for standing in self.ranking() if standing.apart["last"].is_clear]
        names = _name_some([self.with_difference(standing, "last") for standing in clear])
        return f"After the last round, {names or 'no method'} can be told from {self.base}."

    def verb_of_better(self, methods: int) -> str:
        """Say what a number of better methods do to the baseline; more of a metric may be neither better nor worse."""
        if not self.comparison.better:
            return "are above" if methods > 1 else "is above"
        return "beat" if methods > 1 else "beats"

    def verb_of_worse(self, methods: int) -> str:
        """Say what a number of worse methods do; see :meth:`verb_of_better`."""
        if not self.comparison.better:
            return "are below" if methods > 1 else "is below"
        return "fall short of" if methods > 1 else "falls short of"

    def is_better(self, difference: Difference) -> bool:
        return (difference.mean > 0) != (self.comparison.better == "lower")

    def with_unit(self, interval: tuple[float, float]) -> str:
        """Write a mean with half the width of its interval, and the unit."""
        text = with_interval(*interval, self.percent)
        return text + PER_CENT if self.percent else text

    def with_difference(self, standing: Standing, name: str) -> str:
        """Name a method with its difference to the baseline, in the "mean" over the rounds or after the "last" one."""
        difference = standing.apart[name]
        return f"{standing.method.short} ({self.amount(difference)}, {_p(difference)})"

    def amount(self, difference: Difference) -> str:
        """Write a difference without its interval, as "+4.0 points"."""
        text = self.with_sign(difference.mean, difference.half)
        return f"{text} points" if self.percent else text

    def edges(self, difference: Difference) -> str:
        """Write the ends of a difference's interval."""
        low = self.with_sign(difference.mean - difference.half, difference.half)
        high = self.with_sign(difference.mean + difference.half, difference.half)
        return f"95{PER_CENT} interval {low} to {high}"

    def with_sign(self, value: float, half: float) -> str:
        """Write a value with its sign, in as many digits as half the interval's width asks for."""
        return with_interval(value, half, self.percent, "+").partition(" ±")[0]


def conflict(methods: Sequence[Method]) -> str:
    """Write the conflict ratio of each method, and what the rules have left of it; empty if no ratio was measured."""
    ratios = []
    for method in methods:
        before = written(method.band(CONFLICT)["mean"].mean(), percent=True)
        after = written(method.band(CONFLICT + AFTER)["mean"].mean(), percent=True)
        if before == "–":
            continue
        if after in ("–", before):
            ratios.append(f"{method.name} {before}")
        else:
            ratios.append(f"{method.name} {before} → {after}")
    if not ratios:
        return ""
    return f"Pairs of clients in conflict (mean over the rounds, → after correction): {_name_some(ratios)}."


def _name_some(names: Sequence[str]) -> str:
    """Write a list of names, of more than four the first three and the number of the others."""
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _p(difference: Difference) -> str:
    """Write a difference's p value, as "p = 0.02" or "p < 0.001", without a space at which a line may break."""
    text = p_value(difference.p)
    return f"p {text}".replace(" ", NBSP) if text.startswith("<") else f"p = {text}".replace(" ", NBSP)


def table(comparison: Comparison) -> Table:
    """Tabulate what each method reaches, its differences to the baseline, and what the target costs.

    The table also holds its text as CSV, Markdown and LaTeX. A cell breaks only before a p value or a bracket.
    """
    head, rows = _cells(comparison)
    rows = [[method, *map(_keep_together, cells)] for method, *cells in rows]
    caption = about(comparison.metric).title
    if comparison.problem:
        caption += f", {comparison.problem}"
    if max(len(standing.method.runs) for standing in comparison.standings) > 1:
        caption += ": means over the seeds ± half of the 95 % t interval, differences between runs of one seed"
    return Table(head, rows, caption, exports=texts([comparison]))


def _keep_together(cell: str) -> str:
    return re.sub(r"(?<!,) (?![(])", NBSP, cell)


def _cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table, without columns that are empty in all rows."""
    percent = about(comparison.metric).percent
    unit = ", %" if percent else ""
    points = ", points" if percent else ""
    target = f"{100 * comparison.target:g}{PER_CENT}" if percent else f"{comparison.target:g}"
    head = [
        "method",
        f"last{unit}",
        f"last − {comparison.baseline.short}{points}",
        f"mean over rounds{unit}",
        f"mean − {comparison.baseline.short}{points}",
        "seeds",
        f"rounds to {target}",
        f"sent until {target}",
        f"trained until {target}",
    ]
    cells = pd.DataFrame([_row(standing, percent) for standing in comparison.standings], columns=head)
    cells = cells.loc[:, ~cells.isin(["", "–"]).all()]
    return list(map(str, cells)), cells.to_numpy().tolist()


def _row(standing: Standing, percent: bool) -> list[str]:
    """Write a method's cells of the table."""
    return [
        standing.method.short,
        with_interval(*standing.last, percent),
        _cell(standing.apart.get("last"), percent),
        with_interval(*standing.mean, percent),
        _cell(standing.apart.get("mean"), percent),
        str(len(standing.method.runs)),
        *_costs(standing),
    ]


def _cell(difference: Difference | None, percent: bool) -> str:
    """Write a difference with its p value; None is that of the baseline."""
    if difference is None:
        return ""
    if not difference.seeds:
        return "–"
    text = with_interval(difference.mean, difference.half, percent, "+")
    return text if math.isnan(difference.p) else f"{text}, {_p(difference)}"


def _costs(standing: Standing) -> list[str]:
    """Write the rounds, bytes and time that the target costs, and how many seeds reach it if not all do."""
    costs = standing.costs
    seeds = len(standing.method.runs)
    reached = f"{standing.reached} of {seeds} seeds" if 0 < standing.reached < seeds else ""
    if math.isnan(costs["rounds"]):
        return ["–", "–", "–"]
    if math.isinf(costs["rounds"]):
        return [reached or "not reached", "–", "–"]
    rounds = f"{costs['rounds']:g} ({reached})" if reached else f"{costs['rounds']:g}"
    sent = "–" if math.isnan(costs["bytes"]) else decimal(round(costs["bytes"]))
    return [rounds, sent, duration(costs["seconds"])]


def numbers(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Tabulate the comparisons, one row per problem and method; a cost is infinite if the target is not reached."""
    rows = [_facts(comparison, standing) for comparison in comparisons for standing in comparison.standings]
    return pd.DataFrame(rows)


def _facts(comparison: Comparison, standing: Standing) -> dict[str, Any]:
    """Return a method's row of the numbers."""
    row: dict[str, Any] = {
        "problem": comparison.problem,
        "method": standing.method.short,
        "metric": comparison.metric,
        "seeds": len(standing.method.runs),
    }
    row["last"], row["last_half_width"] = standing.last
    row["mean"], row["mean_half_width"] = standing.mean
    row["baseline"] = comparison.baseline.short
    for name in ("last", "mean"):
        facts = astuple(standing.apart[name]) if standing.apart else (math.nan,) * 4
        row |= {f"{name}_{ending}": fact for ending, fact in zip(OF_A_DIFFERENCE, facts, strict=True)}
    row["target"] = comparison.target
    row["reached"] = standing.reached
    return row | {f"{name}_to_target": cost for name, cost in standing.costs.items()}


def texts(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Write comparisons by file name: the numbers as CSV; sentences and tables as Markdown and LaTeX."""
    pages, tables = [], []
    for comparison in comparisons:
        head, rows = _cells(comparison)
        pages.append("\n".join([verdict(comparison), "", *pipes(head, rows), ""]))
        tables.append(latex(head, rows))
    return {
        "comparison.csv": as_csv(numbers(comparisons)),
        "comparison.md": "\n".join(pages),
        "comparison.tex": "\n".join(tables),
    }


def html(comparisons: Sequence[Comparison]) -> str:
    """Write comparisons for a notebook: each the sentence and the table."""
    parts = []
    for comparison in comparisons:
        head, rows = _cells(comparison)
        table = pd.DataFrame(rows, columns=head).to_html(index=False, border=0)
        parts.append(f"<p>{escape(verdict(comparison))}</p>\n{table}")
    return "\n".join(parts)


def latex(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table for LaTeX with the package booktabs: the first column to the left, all others to the right.

    A cell of the head may take two lines, and a number with its p value or number of seeds, too, so that the table is
    no wider than a page.
    """
    names = [BREAK.join(textwrap.wrap(name, HEAD, break_on_hyphens=False)) for name in head]
    cells = [[first, *(re.sub(r", (?=p\s)| (?=\()", BREAK, cell) for cell in others)] for first, *others in rows]
    style = pd.DataFrame(cells, columns=names).style.hide(axis="index")
    style = style.format(escape="latex").format_index(escape="latex", axis=1)
    text = str(style.to_latex(hrules=True, column_format="l" + "r" * (len(head) - 1)))
    for sign, command in LATEX.items():
        text = text.replace(sign, command)
    above, middle, below = text.partition("\\midrule")
    return f"% \\usepackage{{booktabs}}\n{_stack_cells(above, 'b')}{middle}{_stack_cells(below, 't')}"


def _stack_cells(text: str, aligned: str) -> str:
    """Stack the cells that have a BREAK, their top or bottom line (t or b) in line with the other cells."""

    def stack(cell: re.Match[str]) -> str:
        lines = cell[0].replace(BREAK, r"\\")
        return rf"\begin{{tabular}}[{aligned}]{{@{{}}r@{{}}}}{lines}\end{{tabular}}"

    inside = r"(?:\\&|[^&\n])*"  # of a cell
    return re.sub(rf"(?<= ){inside}{BREAK}{inside}?(?= & | \\\\\n)", stack, text)
