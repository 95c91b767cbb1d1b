"""Scales: smaller versions of the papers' experiments, which their configs define below ``scale``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import SCALE, layers_of
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.experiments.grid import option

ROUNDS = ("trainer", "max_epochs")


@dataclass(frozen=True)
class Scale:
    """Describes a smaller version of an experiment.

    Attributes:
        note: a phrase that names the differences to the paper's experiment, such as "30 of 50 rounds".
        rounds: number of rounds of a run.
        options: options of every cell, which override the cell's own.
        axes: the axes of the grid of which not all labels are kept, each with the labels that are kept: a list, or a
            mapping from labels to options of their cells, which override ``options``.
    """

    note: str
    rounds: int
    options: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any] | Mapping[Any, Mapping[str, Any] | None]]

    def cell(self, cell: Cell) -> Cell | None:
        """Return a cell of the paper's experiment at this scale; None if the cell is left out."""
        changes = [{".".join(ROUNDS): self.rounds}, self.options]
        for axis, kept in self.axes.items():
            if axis not in cell.labels:
                continue
            if cell.labels[axis] not in kept:
                return None
            changes.append((kept[cell.labels[axis]] if isinstance(kept, Mapping) else None) or {})
        more = [option(name, value) for each in changes for name, value in each.items()]
        return Cell(cell.labels, (*cell.options, *more))


def scales(config: str) -> list[str]:
    """Name the smaller scales that a config defines."""
    return sorted({name for part in layers_of(config, SCALE) for name in part})


def scale_of(config: str, name: str) -> Scale:
    """Read a scale from a config and the files it builds on, each of which may define a part.

    Raises:
        ConfigurationError: the config has no such scale, or the scale lacks a note or a number of rounds.
    """
    parts = [value for value in layers_of(config, SCALE, name) if isinstance(value, Mapping)]
    if not parts:
        raise ConfigurationError(f"{config} has no scale {name}: it has {', '.join(scales(config)) or 'none'}")
    merged = {key: value for part in parts for key, value in part.items()}
    for key in ("options", "axes"):
        merged[key] = {name: value for part in parts for name, value in (part.get(key) or {}).items()}
    fields = {field.name for field in dataclasses.fields(Scale)}
    if set(merged) != fields:
        raise ConfigurationError(
            f"{config}: scale.{name} must have {', '.join(sorted(fields))}, got {', '.join(merged)}"
        )
    return Scale(**merged)


def at_scale(name: str, experiment: Experiment) -> Experiment:
    """Return an experiment, and those of its cells that are kept, at a scale.

    Raises:
        ConfigurationError: the experiment's config has no such scale.
    """
    scale = scale_of(experiment.config, name)
    *_, rounds = layers_of(experiment.config, *ROUNDS)
    reduced = f"{name.capitalize()} scale, not the paper's: {scale.note}"
    cells = tuple(small for cell in experiment.cells if (small := scale.cell(cell)) is not None)
    return dataclasses.replace(experiment, cells=cells, scale=name, reduced=reduced, pace=scale.rounds / rounds)
