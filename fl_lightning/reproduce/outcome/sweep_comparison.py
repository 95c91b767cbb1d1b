"""End of a sweep: the verdict, the comparison of the cells, and a report of the runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fl_lightning.better import Better
from fl_lightning.report.compared.comparison import compare
from fl_lightning.report.compared.experiments import Experiment as Part
from fl_lightning.report.compared.methods import Method, differing_names, metric_names, place_on_problems
from fl_lightning.report.compared.verdict import table, texts, verdict
from fl_lightning.report.numbers import NBSP
from fl_lightning.report.page import parts_of_page, render
from fl_lightning.reproduce.experiments.choosing import in_words
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.jobs import Pairs, differing_axes, finished_by_cell
from fl_lightning.reproduce.outcome.tables import framed
from fl_lightning.runs.catalogue import metric_and_factor

FEWEST_COLUMNS = 6  # columns that are never left out: method, values, differences, seeds


def write_comparison(
    experiment: Experiment, pairs: Pairs, better: Mapping[str, Better], folder: Path, console: Console
) -> None:
    """Print which cell is better by each measure; write ``comparison.csv``, ``.md``, ``.tex`` and ``report.html``.

    Args:
        experiment: the user's experiment, which names the measures.
        pairs: cells and jobs, at least one of them finished.
        better: which values of metrics are better, see :class:`RunOptions`.
        folder: existing folder to write to.
        console: where to print.
    """
    methods = as_methods(pairs, better)
    logged = metric_names(methods)
    metrics = [metric for metric, _ in map(metric_and_factor, experiment.measures) if metric in logged]
    comparisons = [comparison for metric in metrics for comparison in compare(methods, metric)]
    for comparison in comparisons:
        shown = table(comparison)
        console.print(verdict(comparison), highlight=False, markup=False)
        console.print(framed(shown.caption, *fitted(shown.head, shown.rows, console.width)))
    for file, text in texts(comparisons).items():
        (folder / file).write_text(text, encoding="utf-8")
    (folder / "report.html").write_text(render(parts_of_page([Part("", methods, (), comparisons)])), encoding="utf-8")


def fitted(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> tuple[list[str], list[list[str]]]:
    """Break cells into short lines; in a narrow terminal, break heads at words and leave out the last costs.

    Args:
        head: names of the columns of the comparison.
        rows: the comparison's cells, row by row.
        width: width of the terminal in characters.

    Returns:
        Head and rows of the table to print.
    """
    names = list(head)
    cells = [[row[0], *(_short_lines(cell) for cell in row[1:])] for row in rows]
    if _width(names, cells) > width:
        names = [name.replace(" ", "\n") for name in names]
    while _width(names, cells) > width and len(names) > FEWEST_COLUMNS:
        names = names[:-1]
        cells = [row[:-1] for row in cells]
    return names, cells


def _short_lines(cell: str) -> str:
    """Put a p value and a bracket on a line of its own, and leave no space at which Rich would break a number."""
    return re.sub(f"{NBSP}([±=<]){NBSP}", r"\1", cell.replace(", p", "\np").replace(" (", "\n("))


def _width(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table in characters, with two between columns."""
    width = 0
    for column in zip(head, *rows, strict=True):
        width += max(len(line) for cell in column for line in cell.splitlines() or [""]) + 2
    return width


def as_methods(pairs: Pairs, better: Mapping[str, Better]) -> list[Method]:
    """Make one method of the finished jobs of each cell, named by the labels that tell the cells apart."""
    axes = differing_axes(pairs)
    methods, labels_of = [], {}
    for labels, jobs in finished_by_cell(pairs):
        name = in_words(labels, axes) or "run"
        runs = [replace(job.run, said=better) for job in jobs]
        methods.append(Method(name, runs, runs[0].settings))
        labels_of[name] = labels
    methods = place_on_problems(methods)
    return [replace(method, short=_short_name(method, methods, labels_of)) for method in methods]


def _short_name(method: Method, methods: Sequence[Method], labels_of: Mapping[str, Mapping[str, Any]]) -> str:
    """Name a method by the labels that tell it from the others on its problem."""
    rivals = [other for other in methods if other.problem == method.problem]
    axes = differing_names([labels_of[rival.name] for rival in rivals])
    return in_words(labels_of[method.name], axes) or method.name
