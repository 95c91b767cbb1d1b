"""``fl-lightning report RUN…``: write one page about some runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.better import better_in
from fl_lightning.commands import counted
from fl_lightning.errors import ConfigurationError
from fl_lightning.inside import inside
from fl_lightning.report.arguments import report_arguments
from fl_lightning.report.compared.experiments import Experiment, experiments
from fl_lightning.report.compared.methods import make_methods, say_changed
from fl_lightning.report.compared.verdict import texts, verdict
from fl_lightning.report.drawing.on_paper import save
from fl_lightning.report.page import Part
from fl_lightning.report.python import compare_methods, write_page
from fl_lightning.runs.reader import Run, read_runs


def command(args: Sequence[str]) -> int:
    """Run ``report …`` and return the exit status, 0."""
    options = report_arguments(args)
    runs = read_runs(map(Path, options.run), better_in(options.lower_is_better, options.higher_is_better))
    if len(options.run) > 1 or options.names:
        # The user has named the folders one by one, or the methods: all runs are compared in one part of the page.
        every = [Experiment("", *make_methods(runs, options.names or ()))]
    else:
        every = experiments(runs)
    compared = [compare_methods(experiment, options.metric, options.baseline, options.target) for experiment in every]
    out = Path(options.out) if options.out else _default_file(runs)
    parts = write_page(compared, out)
    print(f"report: {out} ({_counts(compared)}, {out.stat().st_size / 1e6:.1f} MB)")
    if options.figures:
        charts = write_figures(parts, Path(options.figures))
        print(f"figures: {options.figures} ({counted(charts, 'chart')})")
    for experiment in compared:
        for sentence in [*say_changed(experiment.methods), *map(verdict, experiment.comparisons)]:
            print(f"{experiment.name}: {sentence}" if experiment.name else sentence)
    return 0


def _default_file(runs: Sequence[Run]) -> Path:
    """Return report.html in the folder that contains all runs."""
    common = os.path.commonpath([run.folder.resolve() for run in runs])
    return inside(Path(os.path.relpath(common)), "report.html")


def _counts(compared: Sequence[Experiment]) -> str:
    """Say how many experiments, if there are several, runs and methods a page is about."""
    methods = [method for experiment in compared for method in experiment.methods]
    runs = sum(len(method.runs) for method in methods)
    counts = [counted(runs, "run"), counted(len(methods), "method")]
    if len(compared) > 1:
        counts.insert(0, counted(len(compared), "experiment"))
    return ", ".join(counts)


def write_figures(parts: Sequence[Part], folder: Path) -> int:
    """Write every chart of the page as PDF, SVG and CSV, and the comparison as CSV, Markdown and LaTeX.

    Args:
        parts: the parts of the page; each of several gets a folder of its own.
        folder: folder to write to.

    Returns:
        The number of charts.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    count = 0
    try:
        for part in parts:
            experiment = part.experiment
            own = folder / "-".join(re.findall(r"[\w.]+", experiment.name))  # LaTeX likes no spaces and commas
            own.mkdir(parents=True, exist_ok=True)
            for section in part.sections:
                for chart in section.charts:
                    save(chart.plot, own, chart.key, part.methods)
                    count += 1
            if experiment.comparisons:
                for file, text in texts(experiment.comparisons).items():
                    (own / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--figures must be a folder that can be written, got {folder}: {error}") from None
    return count
