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
    *below, own = [_grids(file, content) for file, content in layers(path)]
    items = (item for grids in below for axes in grids for item in axes.items())
    known = {axis: values for axis, values in items if isinstance(values, Mapping)}
    return [cell for axes in own for cell in _points(path, known, axes)]


def _grids(path: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = content.get(GRID) or {}
    grids = found if isinstance(found, list) else [found]
    if not all(isinstance(axes, dict) for axes in grids):
        raise ConfigurationError(f"{path}: grid must map axes to their labels, or list such grids, got {found}")
    return grids


def _points(path: str | Path, known: Mapping[str, Any], axes: Mapping[str, Any]) -> Iterator[Cell]:
    chosen = {axis: _labelled(path, axis, values, known.get(axis)) for axis, values in axes.items()}
    for point in itertools.product(*(values.items() for values in chosen.values())):
        labels = dict(zip(chosen, (label for label, _ in point), strict=True))
        options = [option(name, value) for _, changes in point for name, value in (changes or {}).items()]
        yield Cell(labels, tuple(options))


def _labelled(path: str | Path, axis: str, values: Any, known: Any) -> Mapping[Any, Any]:
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
