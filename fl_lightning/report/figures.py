"""``fl-lightning report --figures``: every chart of the page as a figure for a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.index import Experiment
from fl_lightning.report.page import parts
from fl_lightning.report.printed import save
from fl_lightning.report.verdict import texts


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
        for experiment, part in zip(experiments, parts(experiments), strict=True):
            inside = folder / "-".join(re.findall(r"[\w.]+", part.name))  # LaTeX likes no spaces and commas
            inside.mkdir(parents=True, exist_ok=True)
            for chart in (chart for section in part.sections for chart in section.charts):
                save(chart.plot, inside, chart.key, part.methods)
                count += 1
            for file, text in texts(experiment.comparisons).items() if experiment.comparisons else ():
                (inside / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--figures must be a folder that can be written, got {folder}: {error}") from None
    return count
