"""``fl-lightning report RUN…``: write one page about some runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.commands import counted
from fl_lightning.errors import ConfigurationError
from fl_lightning.inside import inside
from fl_lightning.report.arguments import report_arguments
from fl_lightning.report.compared.experiments import Experiment, experiments
from fl_lightning.report.compared.methods import group, resumed
from fl_lightning.report.compared.verdict import texts, verdict
from fl_lightning.report.drawing.on_paper import save
from fl_lightning.report.page import parts as parts_of
from fl_lightning.report.python import described, write_page
from fl_lightning.runs.reader import Run, read_runs


def command(args: Sequence[str]) -> int:
    """Run ``report …`` and return the exit status, 0."""
    options = report_arguments(args)
    runs = read_runs(map(Path, options.run))
    # Compare the runs in one part of the page if the user names their folders one by one, or names the methods.
    together = len(options.run) > 1 or options.names
    parts = [Experiment("", *group(runs, options.names or ()))] if together else experiments(runs)
    parts = [described(part, options.metric, options.baseline, options.target) for part in parts]
    out = Path(options.out) if options.out else _default(runs)
    write_page(parts, out)
    methods = [method for part in parts for method in part.methods]
    counts = {"experiment": len(parts), "run": sum(len(method.runs) for method in methods), "method": len(methods)}
    about = ", ".join(counted(number, what) for what, number in counts.items() if what != "experiment" or number > 1)
    print(f"report: {out} ({about}, {out.stat().st_size / 1e6:.1f} MB)")
    if options.figures:
        print(f"figures: {options.figures} ({counted(write_figures(parts, Path(options.figures)), 'chart')})")
    for part in parts:
        for words in [*resumed(part.methods), *map(verdict, part.comparisons)]:
            print(f"{part.name}: {words}" if part.name else words)
    return 0


def _default(runs: Sequence[Run]) -> Path:
    common = os.path.commonpath([run.folder.resolve() for run in runs])
    return inside(Path(os.path.relpath(common)), "report.html")


def write_figures(experiments: Sequence[Experiment], folder: Path) -> int:
    """Write every chart of the page as PDF, SVG and CSV, and the comparison as CSV, Markdown and LaTeX.

    Args:
        experiments: the experiments of the page; each of several gets a folder of its own.
        folder: folder to write to.

    Returns:
        The number of charts.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    count = 0
    try:
        for experiment, part in zip(experiments, parts_of(experiments), strict=True):
            own = folder / "-".join(re.findall(r"[\w.]+", part.name))  # LaTeX likes no spaces and commas
            own.mkdir(parents=True, exist_ok=True)
            for chart in (chart for section in part.sections for chart in section.charts):
                save(chart.plot, own, chart.key, part.methods)
                count += 1
            for file, text in texts(experiment.comparisons).items() if experiment.comparisons else ():
                (own / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--figures must be a folder that can be written, got {folder}: {error}") from None
    return count
