"""Compare methods seed by seed: which method is better, by how much, how sure, and at what cost."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from fl_lightning.better import Better, how_to_say
from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.report.compared.long_table import values_by_round
from fl_lightning.report.compared.methods import Method, better_values, logged
from fl_lightning.report.statistics import FEWEST_SEEDS, LEVEL, holm, interval, p_other, paired
from fl_lightning.runs.catalogue import catalogue, is_item
from fl_lightning.runs.config.settings import RULES
from fl_lightning.runs.reader import Run

BASELINE = "FedAvg"  # rules of the baseline unless the user names another method
FIRST = ("val/top1", "val/top3", "val/loss")  # metrics to compare by unless the user names one, the best first
DIGITS = 12  # decimals of a difference; smaller differences are rounding errors
COSTS = ("rounds", "bytes", "seconds")  # what it takes to reach the target


@dataclass(frozen=True)
class Difference:
    """Difference between a method and the baseline: method minus baseline, taken within each seed.

    Attributes:
        mean: mean over the seeds that both methods have.
        half: half the width of the mean's 95 % t interval; nan for one seed.
        p: p value of the paired two-sided t test against 0, corrected by Holm's method for the number of methods; nan
            for fewer than three seeds.
        seeds: number of seeds that both methods have.
    """

    mean: float
    half: float
    p: float
    seeds: int

    @property
    def is_clear(self) -> bool:
        """Whether the difference can be told from 0 at 5 %."""
        return self.p < LEVEL


@dataclass(frozen=True, eq=False)
class Standing:
    """Holds a method's results and costs.

    Attributes:
        method: the method.
        last: mean over the seeds, and half the width of its 95 % t interval, of the metric after the last round.
        mean: mean over the seeds, and half the width of its 95 % t interval, of the metric's mean over the rounds.
        costs: median over the seeds of what it takes to reach the target, by name (COSTS): infinite if half of the
            seeds or more do not reach the target, nan without a target, or if the cost was not recorded.
        reached: number of seeds that reach the target.
        apart: differences to the baseline in the "mean" over the rounds and after the "last" round; empty for the
            baseline.
    """

    method: Method
    last: tuple[float, float]
    mean: tuple[float, float]
    costs: Mapping[str, float]
    reached: int
    apart: Mapping[str, Difference]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The methods tried on one problem, compared with a baseline by one metric.

    Attributes:
        problem: name of the problem; "" if there is one only.
        metric: name of the metric.
        better: values of the metric that are better, "lower" or "higher"; "" if neither, None if nobody says.
        target: value of the metric whose cost is compared; nan if no cost is compared.
        baseline: the method that the others are compared with.
        standings: one entry per method, in the methods' order.
    """

    problem: str
    metric: str
    better: Literal["lower", "higher", ""] | None
    target: float
    baseline: Method
    standings: Sequence[Standing]

    @property
    def others(self) -> list[Standing]:
        """The standings of all methods but the baseline."""
        return [standing for standing in self.standings if standing.method is not self.baseline]


def compare(
    methods: Sequence[Method], metric: str | None = None, baseline: str | None = None, target: float | None = None
) -> list[Comparison]:
    """Compare the methods on each problem with the problem's baseline.

    Runs of one seed share partition, cohorts and initial weights. So differences are taken within a seed, over the
    rounds that both runs have, and tested over the seeds.

    Args:
        methods: the methods; methods without the metric are left out.
        metric: name of the metric; by default that of :func:`default_metric`.
        baseline: name of a method; by default the method with the rules FedAvg, or else each problem's first method.
        target: value of the metric whose cost is compared; by default the baseline's last value, rounded to two
            significant digits, to the worse side; none if guessing a class is as accurate. There is no target of a
            metric of which no values are better.

    Returns:
        One comparison per problem; none if no run has any metric.

    Raises:
        ConfigurationError: no run has the metric, no method has the baseline's name, or a target is given of a metric
            of which no values are better.
    """
    known = logged(methods)
    if not known:
        return []
    metric = metric or default_metric(known)
    if metric not in known:
        near = nearest(metric, known)
        hint = f"did you mean {near}?" if near else f"they have {', '.join(known[:12])}, …"
        raise ConfigurationError(f"metric must be one that the runs have, got {metric}: {hint}")
    measured = [method for method in methods if len(method.values(metric))]
    if baseline is not None and not any(_is_called(method, baseline) for method in measured):
        names = "; ".join(dict.fromkeys(name for method in measured for name in (method.name, method.short)))
        raise ConfigurationError(f"baseline must be the name of a method ({names}), got {baseline}")
    comparisons = []
    for problem in dict.fromkeys(method.problem for method in measured):
        rivals = [method for method in measured if method.problem == problem]
        comparisons.append(_on(problem, rivals, metric, baseline, target))
    return comparisons


def default_metric(logged: Collection[str]) -> str:
    """Choose the metric that methods are compared by if nobody names one.

    Args:
        logged: names of the metrics that the runs have, at least one.

    Returns:
        The first of ``val/top1``, ``val/top3`` and ``val/loss`` that there is; or else the first other ``val/*`` in
        alphabetical order, numbers of one class or client left out; or else the first among the catalogue's metrics,
        or the first at all.
    """
    validated = sorted(name for name in logged if name.startswith("val/") and not is_item(name))
    order = (*FIRST, *validated, *catalogue(), *logged)
    return next(name for name in order if name in logged)


def _is_called(method: Method, name: str) -> bool:
    """Tell whether a name is the method's, or that of its rules."""
    return name in (method.name, method.short) or name == method.runs[0].method


def _on(problem: str, methods: Sequence[Method], metric: str, baseline: str | None, target: float | None) -> Comparison:
    """Compare the methods that are tried on one problem."""
    base = _baseline_of(methods, baseline)
    better = better_values(methods, metric)
    if target is None:
        target = _usual_target(base, metric, better) if better else math.nan
    elif not better:
        raise ConfigurationError(
            f"target: it is not known which values of {metric} are better than {target:g}: {how_to_say(metric)}"
        )
    others = [method for method in methods if method is not base]
    apart = [_apart(method, base, metric) for method in others]
    last = _differences([seeds["last"] for seeds in apart])
    mean = _differences([seeds["mean"] for seeds in apart])
    of_base = {other: {"last": last[at], "mean": mean[at]} for at, other in enumerate(others)}
    is_low = better == "lower"
    standings = [_standing(method, metric, target, is_low, of_base.get(method, {})) for method in methods]
    return Comparison(problem, metric, better, target, base, standings)


def _baseline_of(methods: Sequence[Method], name: str | None) -> Method:
    """Find the method of a name, or without a name that with the rules FedAvg; else take the first."""
    for method in methods:
        if _is_called(method, name) if name else method.settings.get(RULES) == BASELINE:
            return method
    return methods[0]


def _apart(method: Method, base: Method, metric: str) -> pd.DataFrame:
    """Subtract the baseline within each seed: a row for each shared seed, and columns ``last`` and ``mean``.

    Only the rounds that both runs of a seed have count: ``last`` is after the last of these, ``mean`` is over them.
    """
    ours, theirs = paired(_by_seed_and_round(method, metric), _by_seed_and_round(base, metric))
    of_method = ours.groupby("seed", sort=False)
    of_base = theirs.groupby("seed", sort=False)
    # The mean of each seed's values alone: groupby's own mean sums in another order, and so rounds differently.
    mean = of_method.agg(pd.Series.mean) - of_base.agg(pd.Series.mean)
    return pd.DataFrame({"last": of_method.last() - of_base.last(), "mean": mean})


def _by_seed_and_round(method: Method, metric: str) -> pd.Series:
    return method.values(metric).set_index(["seed", "round"])["value"]


def _differences(apart: Sequence[pd.Series]) -> list[Difference]:
    """Test the differences of each method, one value per seed, and correct the p values for the number of methods."""
    p_values = []
    for seeds in apart:
        values = np.round(seeds.to_numpy(dtype=float), DIGITS)
        p_values.append(p_other(values) if len(values) >= FEWEST_SEEDS else math.nan)
    differences = []
    for seeds, p in zip(apart, holm(p_values), strict=True):
        mean, half = interval(seeds)
        differences.append(Difference(mean, half, p, len(seeds)))
    return differences


def _usual_target(base: Method, metric: str, better: Better) -> float:
    """Round the baseline's last value; nan for an accuracy no better than chance, if the classes are known."""
    last, _ = interval(_last(base, metric))
    target = _easier(last, better)
    top = re.search(r"/top(\d)", metric) if metric in catalogue() else None
    counts = base.runs[0].partition().get("counts")
    if top is None or counts is None or better == "lower":
        return target
    chance = int(top[1]) / counts.shape[1]
    return target if target > chance else math.nan


def _easier(value: float, better: Better) -> float:
    """Round to two significant digits, to the side that is easier to reach."""
    if value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    units = round(value / unit, DIGITS)  # without rounding errors
    easier = math.ceil(units) if better == "lower" else math.floor(units)
    return float(f"{easier * unit:.2g}")


def _standing(method: Method, metric: str, target: float, is_low: bool, apart: Mapping[str, Difference]) -> Standing:
    spent = []
    for position, values in method.series(metric).items():
        spent.append(_costs(method.runs[position], values, target, is_low))
    costs = {name: float(np.median([run[name] for run in spent])) for name in COSTS}
    reached = sum(math.isfinite(run["rounds"]) for run in spent)
    means = [values.mean() for values in method.series(metric).values()]
    return Standing(method, interval(_last(method, metric)), interval(means), costs, reached, apart)


def _last(method: Method, metric: str) -> pd.Series:
    """Return a metric's last value in each run."""
    return method.values(metric).groupby("run")["value"].last()


def _costs(run: Run, values: pd.Series, target: float, is_low: bool) -> dict[str, float]:
    """Compute the rounds, bytes and seconds of training up to the first value as good as the target.

    Args:
        run: the run.
        values: the run's values of the metric, by round.
        target: the target; nan for none.
        is_low: whether values as good as the target lie below it, since lower ones are better.
    """
    if math.isnan(target):
        return dict.fromkeys(COSTS, math.nan)
    there = values.index[(values <= target) if is_low else (values >= target)]
    if not len(there):
        return dict.fromkeys(COSTS, math.inf)
    rounds = int(there[0])
    sent = values_by_round(run, "bytes/total").get(rounds, math.nan)
    seconds = math.nan
    if len(run.timings):
        times = run.timings.loc[:rounds, ["local", "server"]]
        if len(times) == rounds:  # a run that was moved or cleaned may lack the times of some rounds
            seconds = float(times.sum().sum())
    return {"rounds": float(rounds), "bytes": float(sent), "seconds": seconds}
