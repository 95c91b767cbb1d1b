"""The cells of an experiment: with options for all of them, refined by ``--grid``, chosen by ``--subset``, named."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.statistics import label
from fl_lightning.reproduce.experiments.experiment import Cell
from fl_lightning.reproduce.experiments.grid import option, option_name
from fl_lightning.runs.config.settings import short
from fl_lightning.runs.folder.yaml_text import read_yaml


def with_options(cells: Sequence[Cell], more: Sequence[str]) -> list[Cell]:
    """Add options of ``fit`` to every cell, after the cell's own.

    Raises:
        ConfigurationError: an option would override one of a cell's own, and so make the cell's label false.
    """
    _refuse_overrides(cells, [argument for argument in more if argument.startswith("--")])
    return [replace(cell, options=(*cell.options, *more)) for cell in cells]


def refine(cells: Sequence[Cell], swept: Sequence[str]) -> list[Cell]:
    """Expand every cell to all points of the axes ``option=values``.

    Raises:
        ConfigurationError: an axis has no values, or would override an option of the cells.
    """
    _refuse_overrides(cells, [f"--{axis}" for axis in swept])
    axes = [read_axis(axis) for axis in swept]
    points = list(itertools.product(*axes))
    return [_at_point(cell, point) for cell in cells for point in points]


def read_axis(axis: str) -> list[tuple[str, Any]]:
    """Read an axis ``option=values``; return the option with each of its values.

    Raises:
        ConfigurationError: the axis has no name or no values.
    """
    name, _, text = axis.partition("=")
    if not name or not text:
        raise ConfigurationError(f"--grid must be OPTION=VALUE[,VALUE], got {axis}: data.partition.alpha=0.1,1")
    values = read_yaml(f"--grid {axis}", text)
    if not isinstance(values, list):
        values = [read_yaml(f"--grid {axis}: {part}", part) for part in text.split(",")]
    return [(name, value) for value in values]


def _at_point(cell: Cell, point: Sequence[tuple[str, Any]]) -> Cell:
    """Set some more options of a cell, with a label for each."""
    labels = {name: _label(value) for name, value in point}
    options = [option(name, value) for name, value in point]
    return replace(cell, labels={**cell.labels, **labels}, options=(*cell.options, *options))


def _refuse_overrides(cells: Sequence[Cell], arguments: Iterable[str]) -> None:
    """Refuse options that override what the cells set; options that append (``+=``) do not."""
    own = {option_name(argument) for cell in cells for argument in cell.options if argument.startswith("--")}
    for argument in arguments:
        if argument.partition("=")[0].endswith("+"):
            continue
        name = option_name(argument)
        lost = [name] if name in own else []
        if "." in name:  # an option below another one is lost with it: data.partition.alpha with data.partition
            lost += sorted(below for below in own if below.startswith(f"{name}."))
        if lost:
            raise ConfigurationError(
                f"--{name} would override {lost[0]}, which the grid or another option sets, and so make labels of the "
                "table false: leave one of them out, or choose cells by --subset"
            )


def _label(value: Any) -> Any:
    """Name a value: callbacks by their classes and arguments, such as "FedProx(mu=0.1) + FedNova", other lists in YAML.

    >>> _label([{"class_path": "FedProx", "init_args": {"mu": 0.1}}, {"class_path": "fl_lightning.callbacks.FedNova"}])
    'FedProx(mu=0.1) + FedNova'
    >>> _label([1, 2])
    '[1, 2]'
    """
    if isinstance(value, str | int | float | None):
        return value
    parts = value if isinstance(value, list) else [value]
    if parts and all(isinstance(part, dict) and "class_path" in part for part in parts):
        return " + ".join(_class_label(part) for part in parts)
    return yaml.safe_dump(value, default_flow_style=True).strip()


def _class_label(part: dict[str, Any]) -> str:
    name = short(part["class_path"])
    arguments = part.get("init_args") or {}
    if not arguments:
        return name
    values = ", ".join(f"{argument}={value}" for argument, value in arguments.items())
    return f"{name}({values})"


def select(cells: Sequence[Cell], wanted: Sequence[str], where: str) -> list[Cell]:
    """Select the cells that have one of the wanted labels on every axis that is named.

    Args:
        cells: cells to choose from.
        wanted: "axis=label" or "axis=label,label", one entry per axis.
        where: name of the experiment for the error message.

    Raises:
        ConfigurationError: an axis or a label does not exist; the message names the existing ones.
    """
    for choice in wanted:
        axis, _, labels = choice.partition("=")
        known = {label(cell.labels[axis]) for cell in cells if axis in cell.labels}
        asked = set(labels.split(","))
        if not known or not asked <= known:
            if known:
                there = f"{axis} has the labels {', '.join(sorted(known))}"
            else:
                axes = dict.fromkeys(name for cell in cells for name in cell.labels)
                there = f"the axes are {', '.join(axes)}"
            raise ConfigurationError(f"--subset must choose labels of {where} (AXIS=LABEL), got {choice}: {there}")
        cells = [cell for cell in cells if axis in cell.labels and label(cell.labels[axis]) in asked]
    return list(cells)


def in_words(labels: Mapping[str, Any], axes: Sequence[str]) -> str:
    """Write the labels on some axes: "FedAvg", "alpha 0.1", "IID, num_clients 5"."""
    return ", ".join(_with_axis(axis, labels[axis]) for axis in axes if labels.get(axis) is not None)


def _with_axis(axis: str, value: Any) -> str:
    text = label(value)
    # Words speak for themselves, and so does an infinite alpha, which is written "IID".
    if isinstance(value, str) or (isinstance(value, float) and math.isinf(value)):
        return text
    return f"{axis.rpartition('.')[2]} {text}"
