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
        options = [option(".".join(ROUNDS), self.rounds), *_as_options(self.options)]
        for axis, kept in self.axes.items():
            if axis not in cell.labels:
                continue
            label = cell.labels[axis]
            if label not in kept:
                return None
            if isinstance(kept, Mapping):
                options += _as_options(kept[label] or {})
        return Cell(cell.labels, (*cell.options, *options))  # the last of two settings of an option counts


def _as_options(values: Mapping[str, Any]) -> list[str]:
    return [option(name, value) for name, value in values.items()]


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
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= part
    for key in ("options", "axes"):  # of these, each file may give some
        merged[key] = {}
        for part in parts:
            merged[key] |= part.get(key) or {}
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
    *_, rounds = layers_of(experiment.config, *ROUNDS)  # the config's own number, or else of the file nearest to it
    reduced = f"{name.capitalize()} scale, not the paper's: {scale.note}"
    smaller = [scale.cell(cell) for cell in experiment.cells]
    cells = tuple(cell for cell in smaller if cell is not None)
    return dataclasses.replace(experiment, cells=cells, scale=name, reduced=reduced, pace=scale.rounds / rounds)
