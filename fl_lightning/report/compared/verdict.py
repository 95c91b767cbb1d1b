"""Say in a sentence which method is better, and write the comparison as a table, CSV, Markdown and LaTeX."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import pandas as pd
from rich.filesize import decimal

from fl_lightning.commands import counted
from fl_lightning.report.compared.comparison import BASELINE, Comparison, Difference, Standing
from fl_lightning.report.compared.methods import CONFLICT, Method
from fl_lightning.report.elements import Table, pipes
from fl_lightning.report.numbers import NBSP, PER_CENT, as_csv, with_interval, written
from fl_lightning.report.statistics import FEWEST_SEEDS
from fl_lightning.runs.catalogue import AFTER, about, is_quality, lower_is_better
from fl_lightning.runs.config.settings import RULES

LEAST_P = 0.001  # smallest p value that is written
NAMED = 4  # largest number of methods that a sentence names for one reason
NO_BASELINE = "No baseline: add `--trainer.callbacks ConflictMonitor` to the command for the same without the rule."
# What LaTeX lacks, after pandas has escaped the rest.
LATEX = {"±": r"$\pm$", "−": "$-$", "–": "--", NBSP: "~", "<": "$<$", ">": "$>$"}
HEAD = 12  # number of letters in a line of a head in LaTeX
OF_A_DIFFERENCE = ("difference", "difference_half_width", "p", "paired_seeds")  # endings of columns of numbers
BREAK = "\N{LINE SEPARATOR}"  # in a cell of two lines


def verdict(comparison: Comparison) -> str:
    """Say which methods beat the baseline, by how much and how sure; with fewer than three seeds, give no verdict.

    Of a single method, say what it reaches, and on a second line how to get a baseline if it is none itself. A
    difference counts if p < 0.05. The text gives differences in the mean over the rounds, then in the last round.
    """
    prefix, words = f"{comparison.problem}: " if comparison.problem else "", _Words(comparison)
    if not comparison.others:
        return prefix + words.alone(comparison.standings[0])
    if max(each.apart["mean"].seeds for each in comparison.others) < FEWEST_SEEDS:
        return prefix + words.too_few()
    return prefix + (words.of_one(comparison.others[0]) if len(comparison.others) == 1 else words.of_several())


class _Words:
    """Writes the sentences of one comparison."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison, self.base = comparison, comparison.baseline.short
        self.percent, title = about(comparison.metric).percent, about(comparison.metric).title
        # A metric that the catalogue lacks keeps its name.
        self.title = title if title == comparison.metric else title[0].lower() + title[1:]
        self.mean, self.unit = f"mean {self.title} over the rounds", PER_CENT * self.percent
        # What one method does to the baseline, then what several do.
        self.wins, self.loses = ("beats", "beat"), ("falls short of", "fall short of")
        if not is_quality(comparison.metric):
            self.wins, self.loses = ("is above", "are above"), ("is below", "are below")

    def alone(self, standing: Standing) -> str:
        last, mean = (with_interval(*each, self.percent) + self.unit for each in (standing.last, standing.mean))
        seeds = counted(len(standing.method.runs), "seed")
        said = f"{self.base} ends with a {self.title} of {last}; the mean over the rounds is {mean} ({seeds})."
        said = f"{said} {conflict([standing.method])}".rstrip()
        return said if standing.method.settings.get(RULES, BASELINE) == BASELINE else f"{said}\n{NO_BASELINE}"

    def too_few(self) -> str:
        others = [each for each in self.comparison.others if each.apart["mean"].seeds]
        if not others:
            return f"No verdict: no method has a seed in common with {self.base}."
        most = max(each.apart["mean"].seeds for each in others)
        apart = ", ".join(
            f"{each.method.short} {self.by(each.apart['mean'])} ({self.by(each.apart['last'])} after the last round)"
            for each in others
        )
        few = f"{counted(most, 'seed')} {'is' if most == 1 else 'are'} too few, at least {FEWEST_SEEDS} are needed"
        return f"No verdict: {few}. Differences to {self.base} in {self.mean}: {apart}."

    def of_one(self, standing: Standing) -> str:
        name, mean, last = standing.method.short, standing.apart["mean"], standing.apart["last"]
        sure = f"{self.edges(mean)}, {_p(mean)}, {counted(mean.seeds, 'seed')}"
        if mean.is_clear:
            way = self.wins if self.is_better(mean) else self.loses
            first = f"{name} {way[0]} {self.base} by {self.by(mean)} of {self.mean} ({sure})"
        else:
            first = f"{name} and {self.base} cannot be told apart in {self.mean}: {self.by(mean)} ({sure})"
        told = "" if last.is_clear else ", not distinguishable"
        return f"{first}; last-round difference {self.by(last)}{told} ({_p(last)})."

    def of_several(self) -> str:
        way = 1 if lower_is_better(self.comparison.metric) else -1
        others = sorted(self.comparison.others, key=lambda each: way * each.apart["mean"].mean)
        means, lasts = ({each.method.short: each.apart[name] for each in others} for name in ("mean", "last"))
        better = self.listed(means, lambda each: each.is_clear and self.is_better(each))
        worse = self.listed(means, lambda each: each.is_clear and not self.is_better(each))
        same = self.listed(means, lambda each: not each.is_clear and each.seeds >= FEWEST_SEEDS)
        few = [name for name, mean in means.items() if mean.seeds < FEWEST_SEEDS]
        best = _joined(better) or "No method"
        parts = [f"{best} {self.wins[len(better) > 1]} {self.base} in {self.mean}"]
        parts += [f"{_joined(worse)} {self.loses[len(worse) > 1]} {self.base}"] if worse else []
        parts += [f"{_joined(same)} cannot be told from {self.base}"] if same else []
        parts += [f"{_joined(few)} {'have' if len(few) > 1 else 'has'} too few seeds"] if few else []
        seeds, told = max(mean.seeds for mean in means.values()), self.listed(lasts, lambda each: each.is_clear)
        tested = sum(mean.seeds >= FEWEST_SEEDS for mean in means.values())
        certain = f"{counted(seeds, 'seed')}, p values corrected for {counted(tested, 'comparison')} by Holm's method"
        last = f"After the last round, {_joined(told) or 'no method'} can be told from {self.base}."
        return f"{'; '.join(parts)} ({certain}). {last}"

    def listed(self, differences: Mapping[str, Difference], chosen: Callable[[Difference], bool]) -> list[str]:
        return [f"{name} ({self.by(each)}, {_p(each)})" for name, each in differences.items() if chosen(each)]

    def is_better(self, difference: Difference) -> bool:
        return (difference.mean > 0) != lower_is_better(self.comparison.metric)

    def by(self, difference: Difference) -> str:
        """Write a difference without its interval, as "+4.0 points"."""
        return self.signed(difference.mean, difference.half) + " points" * self.percent

    def edges(self, difference: Difference) -> str:
        edges = (difference.mean - difference.half, difference.mean + difference.half)
        low, high = (self.signed(edge, difference.half) for edge in edges)
        return f"95{PER_CENT} interval {low} to {high}"

    def signed(self, value: float, half: float) -> str:
        """Write a value with its sign, in as many digits as half the interval's width asks for."""
        return with_interval(value, half, self.percent, "+").partition(" ±")[0]


def conflict(methods: Sequence[Method]) -> str:
    """Write the conflict ratio of each method, and what the rules have left of it; empty if no ratio was measured."""
    told = []
    for method in methods:
        before, after = (written(method.band(name)["mean"].mean(), True) for name in (CONFLICT, CONFLICT + AFTER))
        if before != "–":
            told.append(f"{method.name} {before}" + (f" → {after}" if after not in ("–", before) else ""))
    return f"Pairs of clients in conflict (mean over the rounds, → after correction): {_joined(told)}." if told else ""


def _joined(names: Sequence[str]) -> str:
    names = names if len(names) <= NAMED else [*names[: NAMED - 1], f"{len(names) - NAMED + 1} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _p(difference: Difference) -> str:
    return (f"p < {LEAST_P}" if difference.p < LEAST_P else f"p = {difference.p:.2g}").replace(" ", NBSP)


def table(comparison: Comparison) -> Table:
    """Tabulate what each method reaches, its differences to the baseline, and what the target costs.

    The table also holds its text as CSV, Markdown and LaTeX. A cell breaks only before a p value or a bracket.
    """
    head, rows = _cells(comparison)
    rows = [[row[0], *(re.sub(r"(?<!,) (?![(])", NBSP, cell) for cell in row[1:])] for row in rows]
    caption = ", ".join(filter(None, (about(comparison.metric).title, comparison.problem)))
    if max(len(each.method.runs) for each in comparison.standings) > 1:
        caption += ": means over the seeds ± half of the 95 % t interval, differences between runs of one seed"
    return Table(head, rows, caption, exports=texts([comparison]))


def _cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table, without columns that are empty in all rows."""
    percent = about(comparison.metric).percent
    unit, points = (", %", ", points") if percent else ("", "")
    target = f"{100 * comparison.target:g}{PER_CENT}" if percent else f"{comparison.target:g}"
    head = ["method", f"last{unit}", f"last − {comparison.baseline.short}{points}"]
    head += [f"mean over rounds{unit}", f"mean − {comparison.baseline.short}{points}", "seeds"]
    head += [f"rounds to {target}", f"sent until {target}", f"trained until {target}"]
    rows = [_row(each, percent) for each in comparison.standings]
    kept = [at for at in range(len(head)) if any(row[at] not in ("", "–") for row in rows)]
    return [head[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _row(standing: Standing, percent: bool) -> list[str]:
    reached, of, costs = standing.reached, len(standing.method.runs), standing.costs
    some = f" ({reached} of {of} seeds)" if 0 < reached < of else ""
    cells = [standing.method.short]
    for value, name in ((standing.last, "last"), (standing.mean, "mean")):
        cells += [with_interval(*value, percent), _cell(standing.apart.get(name), percent)]
    cells += [str(of)]
    if math.isnan(costs["rounds"]):
        return [*cells, "–", "–", "–"]
    if math.isinf(costs["rounds"]):
        return [*cells, some.strip(" ()") or "not reached", "–", "–"]
    sent = "–" if math.isnan(costs["bytes"]) else decimal(round(costs["bytes"]))
    return [*cells, f"{costs['rounds']:g}{some}", sent, duration(costs["seconds"])]


def _cell(difference: Difference | None, percent: bool) -> str:
    if difference is None or not difference.seeds:
        return "–" if difference else ""
    text = with_interval(difference.mean, difference.half, percent, "+")
    return text if math.isnan(difference.p) else f"{text}, {_p(difference)}"


def duration(seconds: float) -> str:
    """Write a time for a reader; nan is a dash.

    >>> duration(5.26), duration(90.0), duration(5400.0)
    ('5.3 s', '1.5 min', '1.5 h')
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return "–" if math.isnan(seconds) else f"{seconds:.2g} s"


def numbers(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Tabulate the comparisons, one row per problem and method; a cost is infinite if the target is not reached."""
    rows = []
    for comparison in comparisons:
        for each in comparison.standings:
            row: dict[str, Any] = {"problem": comparison.problem, "method": each.method.short}
            row |= {"metric": comparison.metric, "seeds": len(each.method.runs)}
            row |= dict(zip(("last", "last_half_width", "mean", "mean_half_width"), each.last + each.mean, strict=True))
            row |= {"baseline": comparison.baseline.short}
            for name in ("last", "mean"):
                facts = astuple(each.apart[name]) if each.apart else (math.nan,) * 4
                row |= {f"{name}_{key}": fact for key, fact in zip(OF_A_DIFFERENCE, facts, strict=True)}
            row |= {"target": comparison.target, "reached": each.reached}
            rows.append(row | {f"{name}_to_target": cost for name, cost in each.costs.items()})
    return pd.DataFrame(rows)


def texts(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Write comparisons by file name: the numbers as CSV; sentences and tables as Markdown and LaTeX."""
    tables = {verdict(each): _cells(each) for each in comparisons}
    return {
        "comparison.csv": as_csv(numbers(comparisons)),
        "comparison.md": "\n".join("\n".join([said, "", *pipes(*cells), ""]) for said, cells in tables.items()),
        "comparison.tex": "\n".join(latex(*cells) for cells in tables.values()),
    }


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
    return f"% \\usepackage{{booktabs}}\n{_in_lines(above, 'b')}{middle}{_in_lines(below, 't')}"


def _in_lines(text: str, aligned: str) -> str:
    """Stack the cells that have a BREAK, their top or bottom line (t or b) in line with the other cells."""

    def stacked(cell: re.Match[str]) -> str:
        lines = cell[0].replace(BREAK, r"\\")
        return rf"\begin{{tabular}}[{aligned}]{{@{{}}r@{{}}}}{lines}\end{{tabular}}"

    inside = r"(?:\\&|[^&\n])*"  # of a cell
    return re.sub(rf"(?<= ){inside}{BREAK}{inside}?(?= & | \\\\\n)", stacked, text)
