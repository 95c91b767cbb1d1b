"""Draw the papers' figures, and the curves of any experiment, from run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import ArgumentParser
from numpy.typing import NDArray

from fl_lightning.datamodules import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import Cell
from fl_lightning.fit.reading import config_of
from fl_lightning.report import plots as report
from fl_lightning.report.axes import TOLD_APART
from fl_lightning.report.printed import save
from fl_lightning.reproduce.drawing import curves, lines, name, varying
from fl_lightning.reproduce.figures import Plot, plots
from fl_lightning.reproduce.jobs import Job
from fl_lightning.reproduce.papers import Experiment
from fl_lightning.runs.catalogue import axis_title
from fl_lightning.runs.pictures import DRAWN
from fl_lightning.runs.reader import load


def picture(experiment: Experiment, pairs: Sequence[tuple[Cell, Job]], folder: Path) -> Path | None:
    """Draw a paper's figure as ``figure.png``, any other experiment's curves as ``curves.png``.

    The figure for a paper, as PDF and SVG, and a CSV file of the drawn numbers are written beside the PNG.

    Args:
        experiment: an experiment of the papers, or a user's own.
        pairs: the experiment's cells and jobs; only finished jobs are drawn, except for partitions.
        folder: existing folder to write to.

    Returns:
        The path of the PNG; None if there is nothing to draw: no run is finished, or the runs of a table have one round
        only or more lines than can be told apart.
    """
    plot = plots().get(experiment.id)
    if plot and plot.kind == "partition":
        drawn: report.Plot | None = _partitions(pairs)
    elif plot and plot.kind == "surface":
        drawn = _surfaces(pairs)
    else:
        drawn = _curves(experiment, pairs, plot)
    if drawn is None:
        return None
    path = folder / ("figure.png" if plot else "curves.png")
    save(drawn, folder, path.stem, kinds=("png", "pdf", "svg"))
    return path


def _curves(experiment: Experiment, pairs: Sequence[tuple[Cell, Job]], plot: Plot | None) -> report.Plot | None:
    shown = plot or _usual(experiment, [cell.labels for cell, _ in pairs])
    found = curves(list(shown.measures), pairs)
    names = {name(curve.labels, [axis for axis in curve.labels if axis not in shown.panels]) for curve in found}
    if not found or (not plot and (len(names) > TOLD_APART or all(len(curve.points) < 2 for curve in found))):
        return None
    return lines(found, shown.measures, shown.panels, experiment)


def _usual(experiment: Experiment, labels: Sequence[Mapping[str, Any]]) -> Plot:
    """Make the plot of the first measure: one line per method, or per chain of callbacks, or per last axis' label."""
    axes = list(dict.fromkeys(axis for each in labels for axis in each))
    line = next((axis for axis in ("method", "trainer.callbacks") if axis in axes), axes[-1] if axes else None)
    measure = experiment.measures[0]
    return Plot({measure: axis_title(measure)}, [axis for axis in varying(labels) if axis != line])


def _surfaces(pairs: Sequence[tuple[Cell, Job]]) -> report.Plot | None:
    """Plot the surfaces that LossSurface saved after the last round of each cell's run with the first seed.

    The loss of the model, in the middle, is written behind the title.
    """
    files = {
        called: file
        for called, job in _first_seed(pairs).items()
        if job.finished and (file := job.run.arrays("surface").get(job.rounds))
    }
    panels = {}
    for called, file in files.items():
        arrays = load(file, "steps", "loss")
        steps, loss = arrays["steps"], arrays["loss"]
        panels[f"{called}: {loss[len(steps) // 2, len(steps) // 2]:.3g}"] = report.Surface(steps, loss)
    return report.Panels(panels) if panels else None


def _partitions(pairs: Sequence[tuple[Cell, Job]]) -> report.Plot:
    """Plot the examples that clients hold in each cell with the first seed, one partition below the other."""
    panels = {}
    for called, job in _first_seed(pairs).items():
        counts = _class_counts(job)
        first = f"the first {DRAWN} of {len(counts):,} clients" if len(counts) > DRAWN else ""
        panels[", ".join(filter(None, (called, first)))] = report.Bubbles(counts[:DRAWN])
    return report.Panels(panels, columns=1)


def _first_seed(pairs: Sequence[tuple[Cell, Job]]) -> dict[str, Job]:
    """Return the jobs with the first seed, by the labels of their cells."""
    axes = varying([cell.labels for cell, _ in pairs])
    return {name(cell.labels, axes): job for cell, job in pairs if job.seed == pairs[0][1].seed}


def _class_counts(job: Job) -> NDArray[np.int64]:
    """Return the (N, C) numbers of examples of each class at each client."""
    config = config_of(job.arguments)["data"]
    config["init_args"]["seed"] = job.seed
    parser = ArgumentParser()
    parser.add_subclass_arguments(FederatedDataModule, "data")
    data: FederatedDataModule = parser.instantiate(parser.parse_object({"data": config})).data
    data.prepare_data()
    data.setup("fit")
    if (counts := data.class_counts()) is None:
        raise ConfigurationError(f"{type(data).__name__} has no classes to draw: choose a data set with labels")
    return counts.numpy()
