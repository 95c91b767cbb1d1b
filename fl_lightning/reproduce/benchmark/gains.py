"""Gains: what each method of a problem adds to FedAvg, search by search, and at what cost."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fl_lightning.report.statistics import LEVEL, interval, two_sided_p
from fl_lightning.reproduce.benchmark.search import METHOD, search_of

BASELINE = "FedAvg"
UP, DOWN = "bytes/up", "bytes/down"
BEFORE, AFTER = "conflict/ratio", "conflict/ratio_after"
WORST = "personal/top1_worst"
BOOTSTRAP = 2000  # samples from which an interval is taken


def gains(results: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Compute what each method of a problem adds to FedAvg; differences are taken within each search.

    Args:
        results: the tests of one budget, see :func:`fl_lightning.reproduce.outcome.numbers.collect`.
        measure: name of the column to compare.

    Returns:
        One row per method, FedAvg first, the others by their gain: ``level`` (mean over the searches), ``searches``
        (number of searches whose tests all ended), ``gain`` and ``half`` (mean difference to FedAvg, half of its 95 % t
        interval), ``p`` (paired two-sided t test against 0, not corrected; nan for FedAvg and for fewer than three
        searches), ``up`` and ``down`` (what is sent in a round, in FedAvg's), ``before`` and ``after`` (share of the
        pairs of updates in conflict), ``worst`` (mean accuracy of the worst tenth of the clients, in percent; nan where
        it was not measured).
    """
    values = by_search(results, measure)
    apart = values.sub(values[BASELINE], axis=0)
    table = pd.DataFrame({"level": values.mean(), "searches": values.count()})
    table[["gain", "half"]] = [interval(apart[method]) for method in table.index]
    table["p"] = [_p(apart[method]) for method in table.index]
    table.loc[BASELINE, "p"] = math.nan
    by_method = results.groupby(METHOD)
    sent = by_method[[UP, DOWN]].median()
    table[["up", "down"]] = sent / sent.loc[BASELINE]
    table[["before", "after"]] = by_method[[BEFORE, AFTER]].mean()
    table["worst"] = 100 * by_method[WORST].mean() if WORST in results else math.nan
    return table.sort_values("gain", ascending=False).sort_index(key=lambda names: names != BASELINE, kind="stable")


def by_search(results: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return a measure's mean over the tests of each search; a column for each method, nan where a test is missing."""
    searches = results.assign(search=search_of(results))
    tests = searches.pivot_table(index=["search", "seed"], columns=METHOD, values=measure)
    known = tests.groupby("search")
    return known.mean().where(known.count().eq(known.size(), axis=0))


def _p(apart: pd.Series) -> float:
    return two_sided_p(apart.dropna().to_numpy())


def winners(results: pd.DataFrame, measure: str, better: list[str]) -> list[str]:
    """Return the methods that are not clearly below the best one, by paired t tests at 5 % without correction.

    Args:
        results: as in :func:`gains`.
        measure: name of the column to compare.
        better: methods that are clearly better than FedAvg.
    """
    values = by_search(results, measure)[better]
    if values.empty:
        return []
    best = values.mean().idxmax()
    return [method for method in better if method == best or not _p(values[best] - values[method]) < LEVEL]


def conflict_and_gain(table: pd.DataFrame, generator: np.random.Generator) -> tuple[float, float, float]:
    """Correlate, within problems, the ranks of what methods take from the conflict with those of what they gain.

    Args:
        table: columns ``method``, ``problem``, ``less`` (by how much fewer pairs are in conflict than with FedAvg) and
            ``gain``.
        generator: generator of the bootstrap, which draws problems and methods.

    Returns:
        The correlation of the ranks, each problem's shifted to the mean 0; and the edges of its 95 % interval.
    """
    wide = table.pivot(index=METHOD, columns="problem", values=["less", "gain"]).rank()
    less, gain = wide["less"], wide["gain"]
    less, gain = less - less.mean(), gain - gain.mean()
    sampled = []
    for _ in range(BOOTSTRAP):
        rows = generator.integers(len(less), size=len(less))
        columns = generator.integers(less.shape[1], size=less.shape[1])
        sampled.append(_correlation(less.to_numpy()[rows][:, columns], gain.to_numpy()[rows][:, columns]))
    low, high = np.nanquantile(sampled, [0.025, 0.975])
    return _correlation(less.to_numpy(), gain.to_numpy()), float(low), float(high)


def _correlation(less: np.ndarray, gain: np.ndarray) -> float:
    """Return the correlation of two arrays without their nan."""
    known = ~np.isnan(less) & ~np.isnan(gain)
    if known.sum() < 3 or not np.ptp(less[known]) or not np.ptp(gain[known]):
        return math.nan
    return float(np.corrcoef(less[known], gain[known])[0, 1])
