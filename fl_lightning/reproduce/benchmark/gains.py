"""Gains: what each method of a problem adds to FedAvg, seed by seed, and at what cost."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fl_lightning.report.statistics import FEWEST_SEEDS, LEVEL, holm, interval, p_other
from fl_lightning.reproduce.benchmark.tuning import METHOD

BASELINE = "FedAvg"
MOMENTUM = "FedAvgM"
BEFORE = "conflict/ratio"
AFTER = "conflict/ratio_after"
BYTES = "bytes/total"
FEWEST_METHODS = 3  # of which a correlation is taken
BOOTSTRAP = 2000  # samples from which an interval is taken


def gains(results: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Compute what each method of a problem adds to FedAvg; differences are taken within each seed.

    Args:
        results: table of the runs, see :func:`fl_lightning.reproduce.outcome.numbers.collect`.
        measure: name of the column to compare.

    Returns:
        One row per method, FedAvg first, the others by their gain: ``level`` (mean over the seeds), ``seeds`` (number
        of runs that ended), ``gain`` and ``half`` (mean difference to FedAvg, half of its 95 % t interval), ``p``
        (paired two-sided t test against 0, by Holm's method over the methods), ``beats`` and ``loses`` (whether the
        gain is clear), ``momentum`` and ``momentum_half`` (difference to FedAvgM), ``seconds`` and ``bytes`` (medians,
        in FedAvg's), ``before`` and ``after`` (share of the pairs of updates in conflict).
    """
    values = results.pivot_table(index="seed", columns=METHOD, values=measure)
    apart = values.sub(values[BASELINE], axis=0)
    table = pd.DataFrame({"level": values.mean(), "seeds": values.count()})
    table[["gain", "half"]] = [interval(apart[method]) for method in table.index]
    table["p"] = holm([_p(apart[method]) for method in table.index])
    table["beats"] = (table["p"] < LEVEL) & (table["gain"] > 0)
    table["loses"] = (table["p"] < LEVEL) & (table["gain"] < 0)
    table[["momentum", "momentum_half"]] = math.nan
    if MOMENTUM in values:
        ahead = values.sub(values[MOMENTUM], axis=0)
        table[["momentum", "momentum_half"]] = [interval(ahead[method]) for method in table.index]
    by_method = results.groupby(METHOD)
    costs = by_method[["seconds", BYTES]].median()
    table[["seconds", "bytes"]] = costs / costs.loc[BASELINE]
    table[["before", "after"]] = by_method[[BEFORE, AFTER]].mean()
    return table.sort_values("gain", ascending=False).sort_index(key=lambda names: names != BASELINE, kind="stable")


def _p(apart: pd.Series) -> float:
    """Return the p value of differences to FedAvg; nan for FedAvg itself, and for too few seeds."""
    known = apart.dropna().to_numpy()
    return p_other(known) if len(known) >= FEWEST_SEEDS and apart.name != BASELINE else math.nan


def false_beats(results: pd.DataFrame, measure: str, times: int, generator: np.random.Generator) -> list[int]:
    """Exchange the methods within each seed at random, ``times`` times; count the gains that then seem clear.

    No method is better than another in such results: each clear gain is a false one.
    """
    counts = []
    for _ in range(times):
        shuffled = results.copy()
        for _, rows in results.groupby("seed"):
            shuffled.loc[rows.index, METHOD] = generator.permutation(rows[METHOD].to_numpy())
        counts.append(int(gains(shuffled, measure)["beats"].sum()))
    return counts


def conflict_and_gain(table: pd.DataFrame, generator: np.random.Generator) -> tuple[float, float, float]:
    """Correlate the ranks of what methods take from the conflict, and of what they gain.

    Args:
        table: columns ``method``, ``less`` (by how much fewer pairs are in conflict than with FedAvg) and ``gain``, one
            row for each method and problem.
        generator: generator of the bootstrap. It draws methods, because a method's results are not independent.

    Returns:
        Spearman's correlation, and the edges of its 95 % interval; nan for fewer than three methods.
    """
    if table[METHOD].nunique() < FEWEST_METHODS:
        return math.nan, math.nan, math.nan
    by_method = [rows for _, rows in table.groupby(METHOD)]
    sampled = []
    for _ in range(BOOTSTRAP):
        drawn = generator.integers(len(by_method), size=len(by_method))
        sampled.append(_spearman(pd.concat([by_method[at] for at in drawn])))
    low, high = np.nanquantile(sampled, [0.025, 0.975])
    return _spearman(table), float(low), float(high)


def _spearman(table: pd.DataFrame) -> float:
    return float(table["less"].corr(table["gain"], "spearman"))
