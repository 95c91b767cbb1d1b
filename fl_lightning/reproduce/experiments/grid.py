"""A config's grid: expand it to cells, each with labels and command-line options. Imports no pandas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import GRID, layers
from fl_lightning.reproduce.experiments.experiment import Cell


def grid(path: str | Path) -> list[Cell]:
    """Expand a config's grid to its points, the last axis fastest; without a grid, to one point without options.

    An axis that only lists labels takes the labels' options from a file that the config builds on.

    Raises:
        ConfigurationError: a grid does not name axes, or an axis neither maps labels to options nor lists labels of a
            base.
    """
    # The grids below give options to labels; points are those of the config's own grid alone.
    *below, own = [_grids(file, content) for file, content in layers(path)]
    known = {}
    for axes in itertools.chain(*below):
        for axis, values in axes.items():
            if isinstance(values, Mapping):
                known[axis] = values
    cells: list[Cell] = []
    for axes in own:
        cells += _points(path, known, axes)
    return cells


def _grids(path: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    value = content.get(GRID) or {}
    grids = value if isinstance(value, list) else [value]
    if not all(isinstance(axes, dict) for axes in grids):
        raise ConfigurationError(f"{path}: grid must map axes to their labels, or list such grids, got {value}")
    return grids


def _points(path: str | Path, known: Mapping[str, Any], axes: Mapping[str, Any]) -> Iterator[Cell]:
    chosen = {axis: _options_by_label(path, axis, values, known.get(axis)) for axis, values in axes.items()}
    for point in itertools.product(*(values.items() for values in chosen.values())):
        labels = {}
        options = []
        for axis, (label, changes) in zip(chosen, point, strict=True):
            labels[axis] = label
            options += [option(name, value) for name, value in (changes or {}).items()]
        yield Cell(labels, tuple(options))


def _options_by_label(path: str | Path, axis: str, values: Any, known: Any) -> Mapping[Any, Any]:
    """Return the options that each label of an axis sets, None for none; those of ``known`` for a list of labels."""
    if isinstance(values, Mapping) and all(isinstance(changes, Mapping | None) for changes in values.values()):
        return values
    known = known or {}
    if not isinstance(values, list) or not all(label in list(known) for label in values):
        raise ConfigurationError(
            f"{path}: grid.{axis} must map labels to options ({{5: {{data.num_clients: 5}}}}), or list labels of its "
            f"base ({', '.join(map(str, known)) or 'which has none'}), got {values}"
        )
    return {label: known[label] for label in values}


def option(name: str, value: Any) -> str:
    """Write the command-line argument that sets an option to a value of any type."""
    inline = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
    return f"--{name}=" + inline.removesuffix("...\n").strip()


def option_name(argument: str) -> str:
    """Name the option of an argument: "trainer.callbacks" of "--trainer.callbacks+=FedNova"."""
    return argument.removeprefix("--").partition("=")[0].rstrip("+")
