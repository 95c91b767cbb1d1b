"""The cells of an experiment: with options for all of them, refined by ``--grid``, chosen by ``--subset``, named."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
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
    return [Cell(cell.labels, (*cell.options, *more)) for cell in cells]


def refined(cells: Sequence[Cell], swept: Sequence[str]) -> list[Cell]:
    """Expand every cell to all points of the axes ``option=values``.

    Raises:
        ConfigurationError: an axis has no values, or would override an option of the cells.
    """
    axes = []
    _refuse_overrides(cells, [f"--{each}" for each in swept])
    for each in swept:
        name, _, text = each.partition("=")
        if not name or not text:
            raise ConfigurationError(f"--grid must be OPTION=VALUE[,VALUE], got {each}: data.partition.alpha=0.1,1")
        values = read_yaml(f"--grid {each}", text)
        if not isinstance(values, list):
            values = [read_yaml(f"--grid {each}: {part}", part) for part in text.split(",")]
        axes.append([(name, value) for value in values])
    return [
        Cell(
            {**cell.labels, **{name: _label(value) for name, value in point}},
            (*cell.options, *(option(*p) for p in point)),
        )
        for cell in cells
        for point in itertools.product(*axes)
    ]


def _refuse_overrides(cells: Sequence[Cell], arguments: Iterable[str]) -> None:
    """Refuse options that override what the cells set; options that append (``+=``) do not."""
    ours = {option_name(argument) for cell in cells for argument in cell.options if argument.startswith("--")}
    for argument in arguments:
        name = option_name(argument)
        appends = argument.partition("=")[0].endswith("+")
        lost = sorted(own for own in ours if own == name or ("." in name and own.startswith(f"{name}.")))
        if lost and not appends:
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
        return " + ".join(map(_called, parts))
    return yaml.safe_dump(value, default_flow_style=True).strip()


def _called(part: dict[str, Any]) -> str:
    arguments = ", ".join(f"{name}={value}" for name, value in (part.get("init_args") or {}).items())
    return short(part["class_path"]) + (f"({arguments})" if arguments else "")


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
            axes = dict.fromkeys(name for cell in cells for name in cell.labels)
            there = f"{axis} has the labels {', '.join(sorted(known))}" if known else f"the axes are {', '.join(axes)}"
            raise ConfigurationError(f"--subset must choose labels of {where} (AXIS=LABEL), got {choice}: {there}")
        cells = [cell for cell in cells if axis in cell.labels and label(cell.labels[axis]) in asked]
    return list(cells)


def named(labels: Mapping[str, Any], axes: Sequence[str]) -> str:
    """Write the labels on some axes: "FedAvg", "alpha 0.1", "IID, num_clients 5"."""
    return ", ".join(_spoken(axis, labels[axis]) for axis in axes if labels.get(axis) is not None)


def _spoken(axis: str, value: Any) -> str:
    text = label(value)
    bare = isinstance(value, str) or (isinstance(value, float) and math.isinf(value))
    return text if bare else f"{axis.rpartition('.')[2]} {text}"
