"""The effects of the papers' claims on our runs, seed by seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fl_lightning.reproduce.experiments.choosing import in_words
from fl_lightning.reproduce.experiments.experiment import Claim
from fl_lightning.reproduce.outcome.numbers import axes_of, same

EFFECT_DECIMALS = 9  # decimals of an effect; smaller differences are rounding errors

Labels = Mapping[str, Any]
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Effects:
    """The effect of one comparison, seed by seed.

    Attributes:
        higher: labels of the side that is claimed to be higher.
        than: labels of the other side.
        values: (seeds,) effects of the seeds that have a run of every cell, in ascending order of the seeds; above 0 in
            the claimed direction.
        cells: number of cells that the effect is taken over.
    """

    higher: Labels
    than: Labels
    values: Vector
    cells: int


def effects(claim: Claim, results: pd.DataFrame) -> list[Effects]:
    """Compute a claim's effects, one for each choice of labels from the lists of its two sides.

    A seed without a run of one of the cells is left out: over fewer cells, its effect would be a different one.

    Args:
        claim: the claim, which names cells, measure and axis.
        results: table of runs, see :func:`fl_lightning.reproduce.outcome.numbers.collect`; not empty.

    Raises:
        ValueError: the labels leave open which two cells to compare.
    """
    along = (claim.along or "").lstrip("-")
    named = ({str(name): row[name] for name in row} for row in results.to_dict("records"))
    rows = [row for row in named if has(row, claim.at)]
    if "round" not in {*claim.higher, *claim.than, *claim.at, along}:
        rows = [row for row in rows if row["round"] == results["round"].max()]
    axes = [name for name in axes_of(results) if name not in {*claim.higher, *claim.than}]
    found = []
    for higher, than in itertools.product(_each(claim.higher), _each(claim.than)):
        sides = [_by_cell(rows, higher, axes, claim.measure)]
        if claim.number is None:
            sides.append(_by_cell(rows, than, axes, claim.measure))
        else:
            sides.append({cell: dict.fromkeys(seeds, claim.number) for cell, seeds in sides[0].items()})
        shared = {cell: sides[0][cell].keys() & sides[1][cell].keys() for cell in sides[0] if cell in sides[1]}
        cells = [cell for cell, seeds in shared.items() if seeds]
        seeds = set().union(*(shared[cell] for cell in cells))
        whole = sorted(seed for seed in seeds if all(seed in shared[cell] for cell in cells))
        differences = [[sides[0][cell][seed] - sides[1][cell][seed] for cell in cells] for seed in whole]
        weights = _weights(cells, axes, claim.along)
        values = np.round(np.array(differences) @ weights, EFFECT_DECIMALS) if whole and weights.any() else np.zeros(0)
        found.append(Effects(higher, than, values, len(cells)))
    return found


def _by_cell(
    rows: Sequence[Labels], labels: Labels, axes: Sequence[str], measure: str
) -> dict[tuple[Any, ...], dict[int, float]]:
    """Find the values of the rows that have some labels: by the labels on other axes, then by seed."""
    found: dict[tuple[Any, ...], dict[int, float]] = {}
    for row in rows:
        if has(row, labels) and not math.isnan(row[measure]):
            values = found.setdefault(tuple(None if pd.isna(row[axis]) else row[axis] for axis in axes), {})
            if row["seed"] in values:
                raise ValueError(f"expected labels of one cell for each comparison, got {labels}: name more axes")
            values[row["seed"]] = row[measure]
    return found


def paper_effect(claim: Claim, paper: pd.DataFrame, index: int) -> float:
    """Return the effect of one comparison of a claim by the paper's numbers; nan if the paper prints and states none.

    Args:
        claim: the claim.
        paper: the paper's numbers, see :func:`fl_lightning.reproduce.outcome.numbers.on_paper`.
        index: index of the comparison.
    """
    values = effects(claim, paper)[index].values
    return float(values[0]) if len(values) else claim.stated


def shown(one: Effects) -> str:
    """Name the two sides of a comparison, such as "FedAvg+GH against FedAvg"."""
    return " against ".join(in_words(side, list(side)) for side in (one.higher, one.than) if side)


def _each(labels: Labels) -> list[Labels]:
    choices = [label if isinstance(label, list) else [label] for label in labels.values()]
    return [dict(zip(labels, point, strict=True)) for point in itertools.product(*choices)]


def has(row: Labels, labels: Labels) -> bool:
    """Tell whether a row has one of the wanted labels on each axis; an axis that no cell has counts as null."""
    wanted = {axis: label if isinstance(label, list) else [label] for axis, label in labels.items()}
    return all(any(same(row.get(axis), each) for each in allowed) for axis, allowed in wanted.items())


def _weights(cells: Sequence[tuple[Any, ...]], axes: Sequence[str], along: str | None) -> Vector:
    """Compute (cells,) weights of the mean, or of the slope along an axis ("-axis": of the negative slope)."""
    if along is None:
        return np.full(len(cells), 1 / max(len(cells), 1))
    at = axes.index(along.lstrip("-"))
    weights = slope_weights([cell[at] for cell in cells], [(*cell[:at], *cell[at + 1 :]) for cell in cells])
    return -weights if along.startswith("-") else weights


def slope_weights(labels: Sequence[float], groups: Sequence[Hashable]) -> Vector:
    """Compute (cells,) weights whose product with the cells' values is the least-squares slope along an axis.

    The axis' labels count 0, 1, … from the lowest. One slope is taken for each combination of the other axes' labels,
    so that differences on other axes do not count, and the slopes are averaged.

    >>> slope_weights([0.1, 1.0, math.inf], ["MNIST"] * 3)  # positions 0, 1, 2 about 1 are -1, 0, 1: squares sum to 2
    array([-0.5,  0. ,  0.5])

    Args:
        labels: each cell's label on the axis.
        groups: each cell's labels on the other axes.
    """
    positions = np.searchsorted(np.unique(labels), labels).astype(float)
    weights, sloped = np.zeros(len(labels)), 0
    for group in set(groups):
        inside = np.array([each == group for each in groups])
        centred = positions[inside] - positions[inside].mean()
        if spread := centred @ centred:  # 0 if the group has one label only: no slope
            weights[inside] = centred / spread
            sloped += 1
    return weights / max(sloped, 1)
