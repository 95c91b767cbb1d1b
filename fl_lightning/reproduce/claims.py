"""Test the papers' claims on our runs: t tests over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from fl_lightning.reproduce.experiment import Claim, Experiment
from fl_lightning.reproduce.results import axes_of, on_paper, same
from fl_lightning.runs.seeds import FEWEST_SEEDS, LEVEL, p_above

DIGITS = 9  # decimals of an effect; smaller differences are rounding errors

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
        results: table of our runs, see :func:`fl_lightning.reproduce.results.collect`.
    """
    if results.empty:
        return [Verdict(claim.text, "not run", "no run is finished") for claim in experiment.claims]
    paper = on_paper(experiment, results)
    return [_judge(claim, results, paper) for claim in experiment.claims]


def _judge(claim: Claim, results: pd.DataFrame, paper: pd.DataFrame) -> Verdict:
    test = tested(claim, results)
    fewest = len(test.comparisons[test.weakest].values)
    if fewest < FEWEST_SEEDS:
        verdict = "too few seeds" if fewest else "not run"
        return Verdict(claim.text, verdict, _evidence(claim, test.weakest, test.comparisons, paper, math.nan))
    if test.idle:
        return Verdict(claim.text, "undecided", test.idle)
    if test.p_against < LEVEL:
        evidence = _evidence(claim, test.opposed, test.comparisons, paper, test.p_against)
        return Verdict(claim.text, "contradicted", evidence)
    evidence = _evidence(claim, test.weakest, test.comparisons, paper, test.p_for)
    return Verdict(claim.text, "supported" if test.p_for < LEVEL else "undecided", evidence)


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

    Args:
        claim: the claim, which names cells, measure and axis.
        results: table of runs as in :func:`judge`, not empty.

    Raises:
        pandas.errors.MergeError: the labels leave open which two cells to compare.
    """
    chosen = _where(results, claim.at)
    axis = (claim.along or "").lstrip("-")
    if "round" not in {*claim.higher, *claim.than, *claim.at, axis}:
        chosen = chosen[chosen["round"] == chosen["round"].max()]
    axes = [name for name in axes_of(results) if name not in {*claim.higher, *claim.than}]
    keys, found = ["seed", *axes], []
    for higher, than in itertools.product(_each(claim.higher), _each(claim.than)):
        left, right = (
            _where(chosen, labels)[[*keys, claim.measure]].dropna(subset=claim.measure) for labels in (higher, than)
        )
        pairs = left.merge(right, on=keys, validate="one_to_one")
        pairs["difference"] = pairs[f"{claim.measure}_x"] - pairs[f"{claim.measure}_y"]
        values, cells = _combined(pairs, axes, claim.along)
        sides = pairs[[f"{claim.measure}_x", f"{claim.measure}_y"]].groupby(_groups(pairs, axes)).mean()
        lowest = float(np.min(sides.to_numpy())) if cells else math.nan
        found.append(Effects(higher, than, values, pairs["seed"].nunique(), cells, lowest))
    return found


def paper_effect(claim: Claim, paper: pd.DataFrame, index: int) -> float:
    """Return the effect of one comparison of a claim by the paper's numbers; nan if the paper prints and states none.

    Args:
        claim: the claim.
        paper: the paper's numbers, see :func:`fl_lightning.reproduce.results.on_paper`.
        index: index of the comparison.
    """
    values = effects(claim, paper)[index].values
    return float(values[0]) if len(values) else claim.stated


def _each(labels: Labels) -> list[Labels]:
    choices = [label if isinstance(label, list) else [label] for label in labels.values()]
    return [dict(zip(labels, point, strict=True)) for point in itertools.product(*choices)]


def _where(results: pd.DataFrame, labels: Labels) -> pd.DataFrame:
    for axis, label in labels.items():
        allowed = label if isinstance(label, list) else [label]
        values = results[axis] if axis in results else [None] * len(results)  # perhaps no cell with this axis was run
        results = results[np.array([any(same(value, each) for each in allowed) for value in values], dtype=bool)]
    return results


def _combined(pairs: pd.DataFrame, axes: Sequence[str], along: str | None) -> tuple[Vector, int]:
    """Compute each seed's mean difference, or slope of the difference, and the number of cells.

    A seed without a run of one of the cells is left out: over fewer cells, its effect would be a different one.
    """
    if pairs.empty:
        return np.zeros(0), 0
    pairs = pairs.assign(cell=_groups(pairs, axes))
    cells = pairs.drop_duplicates("cell").sort_values("cell")
    table = pairs.pivot(index="seed", columns="cell", values="difference").dropna()
    weights = np.full(len(cells), 1 / len(cells)) if along is None else slope_weights(cells, axes, along)
    if not weights.any():  # the axis has one label only: no slope
        return np.zeros(0), len(cells)
    return np.round(table.to_numpy() @ weights, DIGITS), len(cells)


def slope_weights(cells: pd.DataFrame, axes: Sequence[str], along: str) -> Vector:
    """Compute (cells,) weights whose product with the cells' values is the least-squares slope along an axis.

    The axis' labels count 0, 1, … from the lowest. One slope is taken for each combination of the other axes' labels,
    so that differences on other axes do not count, and the slopes are averaged.

    Args:
        cells: one row per cell, labels in columns.
        axes: all axes.
        along: one of the axes, or "-axis" for the negative slope.
    """
    axis = along.lstrip("-")
    positions = pd.Series(np.searchsorted(np.unique(cells[axis]), cells[axis]), dtype=float)
    groups = positions.groupby(_groups(cells, [name for name in axes if name != axis]))
    centred = positions - groups.transform("mean")
    spread = (centred**2).groupby(groups.ngroup()).transform("sum")
    sloped = groups.ngroup()[spread > 0].nunique()
    weights = (centred / spread.where(spread > 0, 1.0)).to_numpy() / max(sloped, 1)
    return -weights if along.startswith("-") else weights


def _groups(rows: pd.DataFrame, axes: Sequence[str]) -> npt.NDArray[Any]:
    """Return the (rows,) group numbers: equal for rows with equal labels, nulls included."""
    return rows.groupby(list(axes), sort=False, dropna=False).ngroup().to_numpy() if axes else np.zeros(len(rows), int)


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
