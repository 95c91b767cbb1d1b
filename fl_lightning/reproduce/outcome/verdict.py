"""The verdict on a claim: on which side of zero is the effect, and is it at least half of the paper's?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.report.statistics import interval, p_above
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.outcome.claims import Vector, effects, paper_effect, shown
from fl_lightning.reproduce.outcome.gate import parts_not_recorded, why_not_tested
from fl_lightning.reproduce.outcome.numbers import complete, on_paper
from fl_lightning.reproduce.outcome.stand_in import At, StandIn, settings_at, stand_in

# The numbers of seeds after which a claim is tested, and the levels of the tests; and the probability that one of these
# looks decides although the effect is 0, or half of the paper's (tests/reproduce/outcome/test_verdict.py).
LEVELS = {3: 0.01, 5: 0.01, 8: 0.015, 12: 0.025}
FALSE = 0.049
HOLDS, TOO_SMALL, OPPOSITE, DIFFERS, HOLDS_HERE, NOT_HERE, WITHHELD, OPEN, NOT_RUN = VERDICTS = (
    *("holds", "too small", "opposite", "differs"),
    *("holds on the stand-in", "not on the stand-in"),
    *("withheld", "open", "not run"),
)
DECIDED = VERDICTS[:6]
AT_THE_SETTING = (HOLDS, TOO_SMALL, OPPOSITE, DIFFERS, WITHHELD, OPEN)  # what runs at the paper's setting may say
ON_A_STAND_IN = (HOLDS_HERE, NOT_HERE, WITHHELD, OPEN)  # and those on a stand-in
POWER = 0.8  # probability with which the last look decides, with as many seeds as needed
MOST_SEEDS = 1000  # largest number of seeds that is told


@dataclass(frozen=True)
class Finding:
    """Holds the verdict of our runs on a claim, and the numbers behind it.

    Attributes:
        verdict: one of VERDICTS; on a stand-in, one of its own (:func:`in_its_words`).
        why: why the claim is not tested or the verdict withheld, or what is known of an open claim; mostly empty.
        compared: labels of the comparison that decides, of several.
        effect: mean effect over the seeds of the look that decides, or of the last look; above 0 in the claimed
            direction; nan if not run.
        half_width: half the width of the effect's 95 % t interval.
        paper: the effect by the paper's numbers, for the same cells; nan if the paper prints none.
        seeds: number of seeds.
        needed: number of seeds with which the last look decides with probability POWER if mean and deviation stay as
            they are; 0 if the claim is not open, its seeds do not differ, or it is that two sides are equal.
        p: p value of all looks together, nan if not tested: the look's own, times the sum of all levels, by the look's
            level (Bonferroni over the looks).
        starred: whether the verdict survives Holm's correction over the paper's tested claims.
        stand_in: the data, network and settings of runs that are not at the paper's setting; None at that.
        cells: number of cells that the effect is taken over.
    """

    verdict: str
    why: str = ""
    compared: str = ""
    effect: float = math.nan
    half_width: float = math.nan
    paper: float = math.nan
    seeds: int = 0
    needed: int = 0
    p: float = math.nan
    starred: bool = False
    stand_in: StandIn | None = None
    cells: int = 0


def judge(experiment: Experiment, results: pd.DataFrame) -> list[Finding]:
    """Judge every claim of an experiment.

    Runs of one seed share partition, cohorts and initial weights. So differences are taken within a seed, combined over
    the cells that the claim is about (by the mean, or the slope along an axis), and tested over the seeds, see
    :func:`decide`.

    Args:
        experiment: the experiment with the claims.
        results: table of our runs, see :func:`fl_lightning.reproduce.outcome.numbers.collect`. A claim whose measure it
            lacks, because the runs were made before there was such a claim, is not run.
    """
    if results.empty:
        return [Finding(NOT_RUN, "no run is finished") for _ in experiment.claims]
    results = complete(experiment, results)
    paper = on_paper(experiment, results)
    settings = settings_at(experiment) if experiment.claims else []
    return [_finding(experiment, claim, results, paper, settings) for claim in experiment.claims]


def _finding(
    experiment: Experiment, claim: Claim, results: pd.DataFrame, paper: pd.DataFrame, settings: Sequence[At]
) -> Finding:
    comparisons = effects(claim, results)
    values = [comparison.values for comparison in comparisons]
    theirs = [paper_effect(claim, paper, index) for index in range(len(comparisons))]
    fewest = min(range(len(values)), key=lambda index: len(values[index]))
    if not len(values[fewest]):
        return Finding(NOT_RUN, f"no seed has runs to compare: {shown(comparisons[fewest])}")
    halves = [_half_in_claimed_direction(effect) for effect in theirs]
    verdict, index, seeds, p = decide(values, halves, claim.by)
    why = why_not_tested(experiment, claim, results)
    standing_in = stand_in(claim, settings)
    if why:
        verdict = WITHHELD
        p = math.nan
    elif verdict in (TOO_SMALL, OPPOSITE, DIFFERS) and (lacking := parts_not_recorded(experiment, claim, results)):
        verdict = OPEN
        why = f"its runs do not record {', '.join(lacking)}"
    elif verdict == OPEN and decide(values, [0.0] * len(values), claim.by)[0] == HOLDS:
        why = "the side is clear, the size is not"
    elif standing_in:
        verdict, why = in_its_words(verdict, standing_in)
    if math.isnan(p):
        index = fewest
    looked_at = values[index][:seeds]
    effect, half_width = interval(looked_at.tolist())
    return Finding(
        verdict,
        why,
        compared=shown(comparisons[index]) if len(comparisons) > 1 else "",
        effect=effect,
        half_width=half_width,
        paper=theirs[index],
        seeds=seeds,
        needed=seeds_needed(looked_at, halves[index]) if verdict == OPEN and claim.by is None else 0,
        p=p,
        stand_in=standing_in,
        cells=comparisons[index].cells,
    )


def in_its_words(verdict: str, standing_in: StandIn) -> tuple[str, str]:
    """Say a verdict as one on a stand-in, and why it is withheld, if it is.

    Longer steps hurt where shorter ones help: that an effect is not there is withheld at another learning rate.
    """
    if verdict == HOLDS:
        return HOLDS_HERE, ""
    if verdict not in (TOO_SMALL, OPPOSITE, DIFFERS):
        return verdict, ""
    if standing_in.rate:
        return WITHHELD, f"{verdict} with steps that are not the paper's, {standing_in.rate}"
    return NOT_HERE, ""


def _half_in_claimed_direction(effect: float) -> float:
    """Return half of the paper's effect; 0, so that only the side is asked for, if it prints none or one below 0."""
    return effect / 2 if effect > 0 else 0.0


def decide(values: Sequence[Vector], halves: Sequence[float], margin: float | None) -> tuple[str, int, int, float]:
    """Look at a claim's effects after 3, 5, 8 and 12 seeds; the first look that decides stands.

    Args:
        values: (seeds,) effects of each comparison, in ascending order of the seeds.
        halves: half of the paper's effect for each comparison; 0 for none.
        margin: see :func:`p_values`.

    Returns:
        Verdict, index of the comparison that decides, number of seeds at the look, and p value of all looks together;
        with fewer seeds than the first look takes, all of them and nan.
    """
    most = min(len(effects_of_seeds) for effects_of_seeds in values)
    verdict = OPEN
    index = 0
    at = min(most, min(LEVELS))
    p = math.nan
    for seeds, level in LEVELS.items():
        if seeds > most or verdict != OPEN:
            break
        found = p_values([effects_of_seeds[:seeds] for effects_of_seeds in values], halves, margin)
        clear = [name for name in found if found[name][0] < level]
        # An effect below 0 is also too small: the first that p_values names stands.
        nearest = clear[0] if clear else min(found, key=lambda name: found[name][0])
        own_p, index = found[nearest]
        p = min(1.0, own_p / level * sum(LEVELS.values()))
        at = seeds
        if clear:
            verdict = nearest
    return verdict, index, at, p


def p_values(
    values: Sequence[Vector], halves: Sequence[float], margin: float | None = None
) -> Mapping[str, tuple[float, int]]:
    """Compute the p value of each verdict at one look, by t tests, and the comparison that decides.

    A claim is opposite if the effect is below 0, too small if it is below half of the paper's, and holds if it is above
    that half; tests are two-sided. That two sides are equal within a margin is tested by two one-sided tests
    (Schuirmann, 1987); they differ if the effect is beyond the margin. Of several comparisons, all must hold (an
    intersection-union test), and one decides for another verdict (Bonferroni).

    Args:
        values: (seeds,) effects of each comparison, at least two seeds.
        halves: half of the paper's effect for each comparison; 0 for none.
        margin: a margin above 0; None for the claim that effects are above 0.
    """
    if margin is not None:
        within = [max(p_above(seeds, -margin), p_above(-seeds, -margin)) for seeds in values]
        beyond = [2 * min(p_above(seeds, margin), p_above(-seeds, margin)) for seeds in values]
        return {DIFFERS: _any_of(beyond), HOLDS: _all_of(within)}
    pairs = list(zip(values, halves, strict=True))
    return {
        OPPOSITE: _any_of([2 * p_above(-seeds, 0) for seeds in values]),
        TOO_SMALL: _any_of([2 * p_above(-seeds, -half) for seeds, half in pairs]),
        HOLDS: _all_of([2 * p_above(seeds, half) for seeds, half in pairs]),
    }


def _all_of(p_values: Sequence[float]) -> tuple[float, int]:
    """Return the p value of an intersection-union test, and the comparison with this p value."""
    return max(p_values), int(np.argmax(p_values))


def _any_of(p_values: Sequence[float]) -> tuple[float, int]:
    """Return the smallest p value times the number of comparisons, at most 1, and the comparison with this p value."""
    return min(1.0, len(p_values) * min(p_values)), int(np.argmin(p_values))


def seeds_needed(values: Vector, half: float) -> int:
    """Compute the number of seeds with which the last look decides with probability POWER.

    Mean and deviation are taken to stay as they are: what decides is the mean's distance from half of the paper's
    effect. A distance as large as the deviation takes 13 seeds, one of half the size 41:

    >>> seeds_needed(np.array([0.0, 1.0, 2.0]), 0), seeds_needed(np.array([0.0, 1.0, 2.0]), 0.5)
    (13, 41)

    Returns:
        The number, at least 3; MOST_SEEDS + 1 if it is above MOST_SEEDS, 0 if all values are the same.
    """
    first, *_, last = LEVELS
    if len(values) < first:
        return first
    if not np.ptp(values):
        return 0
    distance = abs(float(values.mean()) - half) / float(values.std(ddof=1))
    seeds = np.arange(first, MOST_SEEDS + 1)
    power = stats.nct.sf(stats.t.ppf(1 - LEVELS[last] / 2, seeds - 1), seeds - 1, distance * np.sqrt(seeds))
    enough = seeds[~(power < POWER)]  # nan for a distance of many deviations
    return int(enough[0]) if len(enough) else MOST_SEEDS + 1
