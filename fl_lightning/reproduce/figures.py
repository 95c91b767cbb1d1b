"""The papers' figures: how each figure is drawn, and which experiment's cells the figure shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fl_lightning.fit.configs import Cell, option
from fl_lightning.reproduce.papers import Experiment, experiments, find
from fl_lightning.runs.yaml_text import read_yaml


@dataclass(frozen=True)
class Plot:
    """Describes how a figure is drawn.

    Attributes:
        measures: title of the axis for each measure: a metric by its name in the papers or by its own name, or
            SIMILARITIES (drawing.py).
        panels: axes of the grid with a panel for each label; the other axes tell lines apart.
        kind: "curves" over the rounds, the "surface" of the loss after the last round, or the "partition" of the data,
            for which nothing is trained.
        experiment: id of another experiment whose cells are drawn; None for the figure's own experiment.
        cells: labels, by axis, of the cells that are drawn; all others are left out.
        options: options added to all cells.
        source: document and number in full; ``source``, ``claim`` and ``notes`` serve only cells of another experiment.
        claim: result of the figure, in words.
        notes: notes on points that the paper leaves open, in addition to the other experiment's notes.
    """

    measures: Mapping[str, str] = field(default_factory=dict)
    panels: Sequence[str] = ()
    kind: Literal["curves", "surface", "partition"] = "curves"
    experiment: str | None = None
    cells: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    claim: str = ""
    notes: Sequence[str] = ()


@cache
def plots() -> dict[str, Plot]:
    """Read all figures of figures.yaml, by id."""
    content = read_yaml("figures.yaml", (Path(__file__).parent / "figures.yaml").read_text())
    return {id: Plot(**facts) for id, facts in content.items()}


def tables_and_figures(name: str) -> list[tuple[Experiment, list[Cell]]]:
    """Find the tables and figures of an id or a document, each with its cells; ``figure-1`` stands for ``fig-1``.

    Raises:
        ConfigurationError: no table or figure has this name.
    """
    name = name.replace("/figure-", "/fig-").rstrip("/")
    figures = borrowed(name)
    tables = [] if any(each.id == name for each, _ in figures) else find(name)
    return [*((each, each.cells()) for each in tables), *figures]


def borrowed(name: str = "") -> list[tuple[Experiment, list[Cell]]]:
    """Find the figures (all, or those of an id or a document) that show cells of another experiment, without claims."""
    named = {id: plot for id, plot in plots().items() if not name or f"{id}/".startswith(f"{name}/")}
    return [_borrowed(id, plot.experiment, plot) for id, plot in named.items() if plot.experiment]


def _borrowed(id: str, source: str, plot: Plot) -> tuple[Experiment, list[Cell]]:
    whole = experiments()[source]
    notes = (f"The paper's numbers are those of {source}.", *plot.notes, *whole.notes)
    more = tuple(option(name, value) for name, value in plot.options.items())
    cells = [
        Cell(cell.labels, cell.options + more)
        for cell in whole.cells()
        if all(cell.labels.get(axis) in labels for axis, labels in plot.cells.items())
    ]
    return dataclasses.replace(whole, id=id, source=plot.source, claim=plot.claim, claims=(), notes=notes), cells


def is_trained(experiment: Experiment) -> bool:
    """Tell whether an experiment needs any training; a figure of partitions needs none."""
    return plots().get(experiment.id, Plot()).kind != "partition"
