"""The effects of the papers' claims on our runs, seed by seed."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fl_lightning.report.statistics import paired
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
    axes = [name for name in axes_of(results) if name not in {*claim.higher, *claim.than}]
    rows = _meant(claim, results)
    rows = rows.assign(cell=_numbered(rows, axes))
    labels = rows.drop_duplicates("cell").set_index("cell")[axes]
    found = []
    for higher, than in itertools.product(_choices(claim.higher), _choices(claim.than)):
        side = _side(rows, higher, claim.measure)
        if claim.number is None:
            side, other = paired(side, _side(rows, than, claim.measure))
            apart = side - other
        else:
            apart = side - claim.number
        by_cell = apart.unstack("cell") if len(apart) else pd.DataFrame()
        whole = by_cell.dropna().sort_index()  # by seed
        weights = _weights(labels.loc[by_cell.columns], claim.along)
        values = np.zeros(0)
        if len(whole) and weights.any():
            values = np.round(whole.to_numpy() @ weights, EFFECT_DECIMALS)
        found.append(Effects(higher, than, values, len(by_cell.columns)))
    return found


def _meant(claim: Claim, results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that a claim is about: with its labels, and of the last round unless the claim names rounds."""
    rows = _with_labels(results, claim.at)
    along = (claim.along or "").lstrip("-")
    if "round" in {*claim.higher, *claim.than, *claim.at, along}:
        return rows
    last = results["round"].max()
    return rows[rows["round"].eq(last)]


def _with_labels(rows: pd.DataFrame, labels: Labels) -> pd.DataFrame:
    """Return the rows that have some labels, see :func:`has`."""
    records: list[dict[Any, Any]] = rows.to_dict("records")
    return rows[np.array([has(record, labels) for record in records], dtype=bool)]


def _numbered(rows: pd.DataFrame, axes: Sequence[str]) -> pd.Series:
    """Number the combinations of labels on some axes; a missing label is a label of its own."""
    if not axes:
        return pd.Series(0, rows.index)
    return rows.groupby(list(axes), sort=False, dropna=False).ngroup()


def _side(rows: pd.DataFrame, labels: Labels, measure: str) -> pd.Series:
    """Return the values of one side of a comparison by seed and cell.

    Raises:
        ValueError: a seed has several values in one cell.
    """
    values = _with_labels(rows, labels).set_index(["seed", "cell"])[measure].dropna()
    if values.index.has_duplicates:
        raise ValueError(f"expected labels of one cell for each comparison, got {labels}: name more axes")
    return values


def paper_effect(claim: Claim, paper: pd.DataFrame, index: int) -> float:
    """Return the effect of one comparison of a claim by the paper's numbers; nan if the paper prints and states none.

    Args:
        claim: the claim.
        paper: the paper's numbers, see :func:`fl_lightning.reproduce.outcome.numbers.on_paper`.
        index: index of the comparison.
    """
    values = effects(claim, paper)[index].values
    return float(values[0]) if len(values) else claim.stated


def shown(comparison: Effects) -> str:
    """Name the two sides of a comparison, such as "FedAvg+GH against FedAvg"."""
    sides = [side for side in (comparison.higher, comparison.than) if side]
    return " against ".join(in_words(side, list(side)) for side in sides)


def _choices(labels: Labels) -> list[Labels]:
    """Choose one label from each list of labels, in all ways."""
    choices = [label if isinstance(label, list) else [label] for label in labels.values()]
    return [dict(zip(labels, point, strict=True)) for point in itertools.product(*choices)]


def has(row: Labels, labels: Labels) -> bool:
    """Tell whether a row has one of the wanted labels on each axis; an axis that no cell has counts as null."""
    for axis, wanted in labels.items():
        allowed = wanted if isinstance(wanted, list) else [wanted]
        if not any(same(row.get(axis), label) for label in allowed):
            return False
    return True


def _weights(cells: pd.DataFrame, along: str | None) -> Vector:
    """Compute (cells,) weights of the mean, or of the slope along an axis ("-axis": of the negative slope).

    Args:
        cells: a row for each cell, a column for each axis on which the cells have labels.
        along: see :class:`Claim`.
    """
    if along is None:
        return np.full(len(cells), 1 / max(len(cells), 1))
    axis = along.lstrip("-")
    groups = _numbered(cells, [name for name in cells.columns if name != axis])
    weights = slope_weights(cells[axis].tolist(), groups.tolist())
    return -weights if along.startswith("-") else weights


def slope_weights(labels: Sequence[float], groups: Sequence[Hashable]) -> Vector:
    """Compute (cells,) weights whose product with the cells' values is the least-squares slope along an axis.

    The axis' labels count 0, 1, … from the lowest. One slope is taken for each combination of the other axes' labels,
    so that differences on other axes do not count, and the slopes are averaged.

    Three labels are at positions 0, 1 and 2, which are -1, 0 and 1 about their mean; the squares of these sum to 2:

    >>> slope_weights([0.1, 1.0, float("inf")], ["MNIST"] * 3)
    array([-0.5,  0. ,  0.5])

    Args:
        labels: each cell's label on the axis.
        groups: each cell's labels on the other axes.
    """
    positions = np.searchsorted(np.unique(labels), labels).astype(float)
    weights = np.zeros(len(labels))
    sloped = 0
    for group in set(groups):
        inside = np.array([own == group for own in groups])
        centred = positions[inside] - positions[inside].mean()
        spread = centred @ centred
        if spread > 0:  # a group with one label only has no slope
            weights[inside] = centred / spread
            sloped += 1
    return weights / max(sloped, 1)
