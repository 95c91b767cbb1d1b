"""Test the papers' claims on our runs: t tests over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from fl_lightning.report.statistics import FEWEST_SEEDS, LEVEL, p_above
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.outcome.numbers import axes_of, on_paper, same

EFFECT_DECIMALS = 9  # decimals of an effect; smaller differences are rounding errors

Labels = Mapping[str, Any]
Vector = npt.NDArray[np.float64]


class Verdict(NamedTuple):
    """The result of a claim's test on our runs.

    Attributes:
        text: the claim.
        verdict: "supported", "contradicted", "undecided", "too few seeds" or "not run".
        evidence: effect, the paper's effect in brackets, p value, numbers of seeds and cells; with several comparisons,
            the evidence of the deciding one.
    """

    text: str
    verdict: str
    evidence: str


@dataclass(frozen=True, eq=False)
class Effects:
    """The effect of one comparison, seed by seed.

    Attributes:
        higher: labels of the side that is claimed to be higher.
        than: labels of the other side.
        values: (seeds,) effects of the seeds that have a run of every cell; above 0 in the claimed direction.
        seeds: number of seeds that have a run of any cell.
        cells: number of cells that the effect is taken over.
        lowest: the lowest mean over seeds of a compared cell; nan without cells.
    """

    higher: Labels
    than: Labels
    values: Vector
    seeds: int
    cells: int
    lowest: float


def judge(experiment: Experiment, results: pd.DataFrame) -> list[Verdict]:
    """Test every claim of an experiment.

    Runs of one seed share partition, cohorts and initial weights. So differences are taken within a seed, combined over
    the cells that the claim is about (by the mean, or the slope along an axis), and tested over the seeds by a
    two-sided t test at 5 %. A claim that two sides are equal within a margin is tested by two one-sided t tests
    (Schuirmann, 1987), and contradicted if a two-sided t test finds the effect beyond the margin. It is undecided if a
    compared cell does not exceed ``above``.

    A claim with several comparisons is supported if every comparison alone supports the claim (an intersection-union
    test), and contradicted if one comparison contradicts the claim after its p value is multiplied by the number of
    comparisons (Bonferroni). p values are not corrected for the number of claims.

    Args:
        experiment: the experiment with the claims.
        results: table of our runs, see :func:`fl_lightning.reproduce.outcome.numbers.collect`.
    """
    if results.empty:
        return [Verdict(claim.text, "not run", "no run is finished") for claim in experiment.claims]
    paper = on_paper(experiment, results)
    return [_judge(claim, results, paper) for claim in experiment.claims]


def _judge(claim: Claim, results: pd.DataFrame, paper: pd.DataFrame) -> Verdict:
    test = tested(claim, results)
    index, p = test.weakest, test.p_for
    if math.isnan(p):
        verdict = "too few seeds" if len(test.comparisons[index].values) else "not run"
    elif test.idle:
        return Verdict(claim.text, "undecided", test.idle)
    elif test.p_against < LEVEL:
        verdict, index, p = "contradicted", test.opposed, test.p_against
    else:
        verdict = "supported" if p < LEVEL else "undecided"
    return Verdict(claim.text, verdict, _evidence(claim, index, test.comparisons, paper, p))


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of a claim's test, see :func:`judge`.

    Attributes:
        comparisons: the effects, one for each comparison of the claim.
        p_for: p value for the claim: that of the comparison that supports the claim least; nan with too few seeds.
        p_against: p value against the claim, corrected for the number of comparisons; nan with too few seeds.
        weakest: index of the comparison of ``p_for``; with too few seeds, of the comparison with the fewest.
        opposed: index of the comparison of ``p_against``.
        idle: why the claim cannot be tested although there are seeds enough: a side is not above the claim's ``above``.
    """

    comparisons: Sequence[Effects]
    p_for: float
    p_against: float
    weakest: int
    opposed: int
    idle: str = ""


def tested(claim: Claim, results: pd.DataFrame) -> Outcome:
    """Test a claim on a table of runs as in :func:`judge`, not empty."""
    found = effects(claim, results)
    counts = [len(each.values) for each in found]
    if min(counts) < FEWEST_SEEDS:
        fewest = int(np.argmin(counts))
        return Outcome(found, math.nan, math.nan, fewest, fewest)
    p_values = [p_for_and_against(each.values, claim.by) for each in found]
    weakest = max(range(len(found)), key=lambda index: p_values[index][0])
    opposed = min(range(len(found)), key=lambda index: p_values[index][1])
    against = min(1.0, p_values[opposed][1] * len(found))
    lowest = min(each.lowest for each in found)
    idle = "" if lowest > claim.above else f"a side learns too little: {lowest:.3g}, expected above {claim.above:g}"
    return Outcome(found, p_values[weakest][0], against, weakest, opposed, idle)


def effects(claim: Claim, results: pd.DataFrame) -> list[Effects]:
    """Compute a claim's effects, one for each choice of labels from the lists of its two sides.

    A seed without a run of one of the cells is left out: over fewer cells, its effect would be a different one.

    Args:
        claim: the claim, which names cells, measure and axis.
        results: table of runs as in :func:`judge`, not empty.

    Raises:
        ValueError: the labels leave open which two cells to compare.
    """
    along = (claim.along or "").lstrip("-")
    named = ({str(name): row[name] for name in row} for row in results.to_dict("records"))
    rows = [row for row in named if _has(row, claim.at)]
    if "round" not in {*claim.higher, *claim.than, *claim.at, along}:
        rows = [row for row in rows if row["round"] == results["round"].max()]
    axes = [name for name in axes_of(results) if name not in {*claim.higher, *claim.than}]
    found = []
    for higher, than in itertools.product(_each(claim.higher), _each(claim.than)):
        sides = [_by_cell(rows, labels, axes, claim.measure) for labels in (higher, than)]
        shared = {cell: sides[0][cell].keys() & sides[1][cell].keys() for cell in sides[0] if cell in sides[1]}
        cells = [cell for cell, seeds in shared.items() if seeds]
        seeds = set().union(*(shared[cell] for cell in cells))
        whole = sorted(seed for seed in seeds if all(seed in shared[cell] for cell in cells))
        differences = [[sides[0][cell][seed] - sides[1][cell][seed] for cell in cells] for seed in whole]
        weights = _weights(cells, axes, claim.along)
        values = np.round(np.array(differences) @ weights, EFFECT_DECIMALS) if whole and weights.any() else np.zeros(0)
        means = [fmean(side[cell][seed] for seed in shared[cell]) for side in sides for cell in cells]
        found.append(Effects(higher, than, values, len(seeds), len(cells), min(means, default=math.nan)))
    return found


def _by_cell(
    rows: Sequence[Labels], labels: Labels, axes: Sequence[str], measure: str
) -> dict[tuple[Any, ...], dict[int, float]]:
    """Find the values of the rows that have some labels: by the labels on other axes, then by seed."""
    found: dict[tuple[Any, ...], dict[int, float]] = {}
    for row in rows:
        if _has(row, labels) and not math.isnan(row[measure]):
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


def _each(labels: Labels) -> list[Labels]:
    choices = [label if isinstance(label, list) else [label] for label in labels.values()]
    return [dict(zip(labels, point, strict=True)) for point in itertools.product(*choices)]


def _has(row: Labels, labels: Labels) -> bool:
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


def p_for_and_against(values: Vector, margin: float | None = None) -> tuple[float, float]:
    """Compute p values for and against the claim that the mean is above 0, or within a margin of 0.

    Args:
        values: (seeds,) effects, at least two.
        margin: a margin above 0; None for the claim that the mean is above 0.
    """
    if margin is None:
        return min(1.0, 2 * p_above(values, 0)), min(1.0, 2 * p_above(-values, 0))
    beyond = min(p_above(values, margin), p_above(-values, margin))
    return max(p_above(values, -margin), p_above(-values, -margin)), min(1.0, 2 * beyond)


def _evidence(claim: Claim, index: int, found: Sequence[Effects], paper: pd.DataFrame, p: float) -> str:
    """Write the evidence: the compared cells, the effect, the p value, the numbers of seeds and cells."""
    one = found[index]
    against = ", ".join(f"{axis} {label}" for labels in (one.higher, one.than) for axis, label in labels.items())
    if not len(one.values):
        return f"no seed has runs to compare: {against}"
    what = f"{against}: " if len(found) > 1 else ""
    change = "fall" if str(claim.along).startswith("-") else "rise"
    what += "difference" if claim.along is None else f"{change} of the difference per step of {claim.along.lstrip('-')}"
    theirs = paper_effect(claim, paper, index)
    stated = "" if math.isnan(theirs) else f" (paper {theirs:+.3g})"
    certainty = "" if math.isnan(p) else f", p {'< 0.001' if p < 0.001 else f'= {p:.2g}'}"
    within = "" if claim.by is None else f", margin {claim.by:g}"
    seeds = f"{len(one.values)}{f' of {one.seeds}' * (one.seeds > len(one.values))} seed{'s' * (one.seeds != 1)}"
    cells = f"{one.cells} cell{'s' * (one.cells != 1)}"
    return f"{what} {one.values.mean():+.3g}{stated}{within}{certainty}, {seeds}, {cells}"
