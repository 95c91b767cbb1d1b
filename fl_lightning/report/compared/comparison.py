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
from fl_lightning.report.compared.methods import Method, better_values, metric_names
from fl_lightning.report.statistics import LEVEL, holm, interval, paired, two_sided_p
from fl_lightning.runs.catalogue import catalogue, is_item
from fl_lightning.runs.config.settings import RULES
from fl_lightning.runs.reader import Run

BASELINE = "FedAvg"  # rules of the baseline unless the user names another method
FIRST = ("val/top1", "val/top3", "val/loss")  # metrics to compare by unless the user names one, the best first
DIGITS = 12  # decimals of a difference; smaller differences are rounding errors
COSTS = ("rounds", "bytes", "seconds")  # what it takes to reach the target

Values = Mapping[Method, pd.DataFrame]  # the long table of one metric, see long_table.py, for each method


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
    known = metric_names(methods)
    if not known:
        return []
    metric = metric or default_metric(known)
    if metric not in known:
        near = nearest(metric, known)
        hint = f"did you mean {near}?" if near else f"they have {', '.join(known[:12])}, …"
        raise ConfigurationError(f"metric must be one that the runs have, got {metric}: {hint}")
    measured = []
    problems: dict[str, dict[Method, pd.DataFrame]] = {}
    for method in methods:
        values = method.values(metric)
        if len(values):
            measured.append(method)
            problems.setdefault(method.problem, {})[method] = values
    if baseline is not None and not any(_is_called(method, baseline) for method in measured):
        names = "; ".join(dict.fromkeys(name for method in measured for name in (method.name, method.short)))
        raise ConfigurationError(f"baseline must be the name of a method ({names}), got {baseline}")
    return [_compare_rivals(problem, rivals, metric, baseline, target) for problem, rivals in problems.items()]


def default_metric(names: Collection[str]) -> str:
    """Choose the metric that methods are compared by if nobody names one.

    Args:
        names: names of the metrics that the runs have, at least one.

    Returns:
        The first of ``val/top1``, ``val/top3`` and ``val/loss`` that there is; or else the first other ``val/*`` in
        alphabetical order, numbers of one class or client left out; or else the first among the catalogue's metrics,
        or the first at all.
    """
    validated = sorted(name for name in names if name.startswith("val/") and not is_item(name))
    order = (*FIRST, *validated, *catalogue(), *names)
    return next(name for name in order if name in names)


def _is_called(method: Method, name: str) -> bool:
    """Tell whether a name is the method's, or that of its rules."""
    return name in (method.name, method.short) or name == method.runs[0].method


def _compare_rivals(
    problem: str, values: Values, metric: str, baseline: str | None, target: float | None
) -> Comparison:
    """Compare the methods that are tried on one problem."""
    methods = list(values)
    base = _baseline_of(methods, baseline)
    better = better_values(methods, metric)
    if target is None:
        target = _usual_target(base, values[base], metric, better) if better else math.nan
    elif not better:
        raise ConfigurationError(
            f"target: it is not known which values of {metric} are better than {target:g}: {how_to_say(metric)}"
        )
    apart = _differences(values, base)
    standings = []
    for method, of_method in values.items():
        standings.append(_standing(method, of_method, target, better == "lower", apart.get(method, {})))
    return Comparison(problem, metric, better, target, base, standings)


def _baseline_of(methods: Sequence[Method], name: str | None) -> Method:
    """Find the method of a name, or without a name that with the rules FedAvg; else take the first."""
    for method in methods:
        if _is_called(method, name) if name else method.settings.get(RULES) == BASELINE:
            return method
    return methods[0]


def _differences(values: Values, base: Method) -> dict[Method, dict[str, Difference]]:
    """Test the ``last`` and the ``mean`` difference of each other method, and correct p for the number of methods."""
    by_seed = {method: _subtract(ours, values[base]) for method, ours in values.items() if method is not base}
    differences: dict[Method, dict[str, Difference]] = {method: {} for method in by_seed}
    for name in ("last", "mean"):
        p_values = []
        for seeds in by_seed.values():
            p_values.append(two_sided_p(np.round(seeds[name].to_numpy(dtype=float), DIGITS)))
        for (method, seeds), p in zip(by_seed.items(), holm(p_values), strict=True):
            differences[method][name] = Difference(*interval(seeds[name]), p, len(seeds))
    return differences


def _subtract(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Subtract the baseline within each seed: a row for each shared seed, and columns ``last`` and ``mean``.

    Only the rounds that both runs of a seed have count: ``last`` is after the last of these, ``mean`` is over them.
    """
    key = ["seed", "round"]
    one, other = paired(ours.set_index(key)["value"], theirs.set_index(key)["value"])
    return _last_and_mean(one, "seed") - _last_and_mean(other, "seed")


def _last_and_mean(values: pd.Series, by: str) -> pd.DataFrame:
    """Tabulate the ``last`` value and the ``mean`` of each seed, or run: of what ``by`` names in the index."""
    groups = values.groupby(by, sort=False)
    # The mean of each group's values alone: groupby's own mean sums in another order, and so rounds differently.
    return pd.DataFrame({"last": groups.last(), "mean": groups.agg(pd.Series.mean)})


def _usual_target(base: Method, values: pd.DataFrame, metric: str, better: Better) -> float:
    """Round the baseline's last value; nan for an accuracy no better than chance, if the classes are known."""
    last, _ = interval(values.groupby("run")["value"].last())
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


def _standing(
    method: Method, values: pd.DataFrame, target: float, is_low: bool, apart: Mapping[str, Difference]
) -> Standing:
    spent = []
    for position in values["run"].unique():
        by_round = values[values["run"] == position].set_index("round")["value"]
        spent.append(_costs(method.runs[position], by_round, target, is_low))
    medians = pd.DataFrame(spent).median(skipna=False)
    costs = {name: float(medians[name]) for name in COSTS}
    reached = sum(math.isfinite(run["rounds"]) for run in spent)
    runs = _last_and_mean(values.set_index("run")["value"], "run")
    return Standing(method, interval(runs["last"]), interval(runs["mean"]), costs, reached, apart)


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
