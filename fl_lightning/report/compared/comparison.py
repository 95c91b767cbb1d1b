"""Compare methods seed by seed: which method is better, by how much, how sure, and at what cost."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.report.compared.methods import Method, logged
from fl_lightning.report.statistics import FEWEST_SEEDS, LEVEL, holm, interval, p_above
from fl_lightning.runs.catalogue import catalogue, is_item, lower_is_better
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
        target: value of the metric whose cost is compared; nan if no cost is compared.
        baseline: the method that the others are compared with.
        standings: one entry per method, in the methods' order.
    """

    problem: str
    metric: str
    target: float
    baseline: Method
    standings: Sequence[Standing]

    @property
    def others(self) -> list[Standing]:
        """The standings of all methods but the baseline."""
        return [each for each in self.standings if each.method is not self.baseline]


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
            significant digits, to the worse side; none if guessing a class is as accurate.

    Returns:
        One comparison per problem; none if no run has any metric.

    Raises:
        ConfigurationError: no run has the metric, or no method has the baseline's name.
    """
    if not (known := logged(methods)):
        return []
    metric = metric or default_metric(known)
    if metric not in known:
        near = nearest(metric, known)
        hint = f"did you mean {near}?" if near else f"they have {', '.join(known[:12])}, …"
        raise ConfigurationError(f"metric must be one that the runs have, got {metric}: {hint}")
    found = [method for method in methods if method.series(metric)]
    if baseline is not None and not any(_is_called(method, baseline) for method in found):
        names = "; ".join(dict.fromkeys(name for method in found for name in (method.name, method.short)))
        raise ConfigurationError(f"baseline must be the name of a method ({names}), got {baseline}")
    problems = dict.fromkeys(method.problem for method in found)
    return [_on(p, [m for m in found if m.problem == p], metric, baseline, target) for p in problems]


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
    def is_baseline(method: Method) -> bool:
        return _is_called(method, baseline) if baseline else method.settings.get(RULES) == BASELINE

    base = next(filter(is_baseline, methods), methods[0])
    target = _target(base, metric) if target is None else target
    others = [method for method in methods if method is not base]
    apart = map(_differences, zip(*(_apart(method, base, metric) for method in others), strict=True))
    paired = {method: {"last": last, "mean": mean} for method, last, mean in zip(others, *apart, strict=True)}
    standings = [_standing(method, metric, target, paired.get(method, {})) for method in methods]
    return Comparison(problem, metric, target, base, standings)


def _differences(apart: Sequence[Sequence[float]]) -> list[Difference]:
    """Test the differences of each method, one value per seed, and correct the p values for the number of methods."""
    values = [np.round(np.array(each), DIGITS) for each in apart]
    p_values = [
        min(1.0, 2 * min(p_above(each, 0), p_above(-each, 0))) if len(each) >= FEWEST_SEEDS else math.nan
        for each in values
    ]
    every = zip(apart, holm(p_values), strict=True)
    return [Difference(*interval(each), p, len(each)) for each, p in every]


def _apart(method: Method, base: Method, metric: str) -> tuple[list[float], list[float]]:
    """Subtract the baseline within each seed, over the rounds that both runs have: after the last, and in the mean."""
    ours, theirs = ({each.runs[n].seed: one for n, one in each.series(metric).items()} for each in (method, base))
    pairs = [ours[seed].align(theirs[seed], join="inner") for seed in ours if seed in theirs]
    pairs = [(one, other) for one, other in pairs if len(one)]
    last = [float(one.iloc[-1]) - float(other.iloc[-1]) for one, other in pairs]
    return last, [float(one.mean()) - float(other.mean()) for one, other in pairs]


def _target(base: Method, metric: str) -> float:
    """Round the baseline's last value; nan for an accuracy no better than chance, if the classes are known."""
    target = _easier(_last(base, metric)[0], metric)
    top, counts = re.search(r"/top(\d)", metric), base.runs[0].partition().get("counts")
    chance = int(top[1]) / counts.shape[1] if top and counts is not None else -math.inf
    return target if target > chance else math.nan


def _easier(value: float, metric: str) -> float:
    """Round to two significant digits, to the side that is easier to reach."""
    if value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    units = round(value / unit, DIGITS)  # without rounding errors
    return float(f"{(math.ceil(units) if lower_is_better(metric) else math.floor(units)) * unit:.2g}")


def _standing(method: Method, metric: str, target: float, apart: Mapping[str, Difference]) -> Standing:
    series = method.series(metric)
    spent = [_costs(method.runs[n], each, target, lower_is_better(metric)) for n, each in series.items()]
    costs = {name: float(np.median([each[name] for each in spent])) for name in COSTS}
    reached = sum(math.isfinite(each["rounds"]) for each in spent)
    mean = interval([each.mean() for each in series.values()])
    return Standing(method, _last(method, metric), mean, costs, reached, apart)


def _last(method: Method, metric: str) -> tuple[float, float]:
    """Return the mean over the seeds of a metric's last value, and half the width of its interval."""
    return interval([each.iloc[-1] for each in method.series(metric).values()])


def _costs(run: Run, series: pd.Series, target: float, lower: bool) -> dict[str, float]:
    """Compute the rounds, bytes and seconds of training up to the first value as good as the target."""
    if math.isnan(target):
        return dict.fromkeys(COSTS, math.nan)
    there = series.index[(series <= target) if lower else (series >= target)]
    if not len(there):
        return dict.fromkeys(COSTS, math.inf)
    sent = run.metrics["bytes/total"].get(there[0], math.nan) if "bytes/total" in run.metrics else math.nan
    times = run.timings.loc[: there[0], ["local", "server"]] if len(run.timings) else pd.DataFrame()
    whole = len(times) == there[0]  # a run that was moved or cleaned may lack the times of some rounds
    return {"rounds": float(there[0]), "bytes": float(sent), "seconds": float(times.sum().sum()) if whole else math.nan}
