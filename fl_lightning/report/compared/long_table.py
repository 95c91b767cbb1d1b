"""Metrics of runs as one long table: the only reader of ``Run.metrics`` in reports and results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from fl_lightning.runs.reader import Run

NO_SEED = "–"  # seed of a run without config
COLUMNS = ("run", "seed", "metric", "round", "value")
KINDS = {"run": int, "round": int, "value": float}  # of the columns of an empty table


def long_table(runs: Sequence[Run], metrics: Iterable[str]) -> pd.DataFrame:
    """Read metrics of runs: a row for each value, none for a round without a value.

    Two runs of two rounds, the first of which has an accuracy in both rounds, the other in the second alone::

           run  seed    metric  round  value
        0    0     1  val/top1      1   0.31
        1    0     1  val/top1      2   0.45
        2    1     2  val/top1      2   0.44

    So ``groupby("run")["value"].last()`` is what each run has reached, and :func:`column_per_run` lays the runs side
    by side.

    Args:
        runs: the runs.
        metrics: names of metrics; a run that has not logged one has no rows of it.

    Returns:
        Columns ``run`` (the run's position among the runs), ``seed`` (NO_SEED for a run without config), ``metric``,
        ``round`` and ``value``; the rows are in the order of the runs, then of the metrics, then of the rounds.
    """
    parts = []
    names = list(metrics)
    for position, run in enumerate(runs):
        seed = NO_SEED if run.seed is None else run.seed
        for name in names:
            if name not in run.metrics:
                continue
            values = run.metrics[name].dropna()
            if len(values):  # an empty part would change the types of the columns
                facts = {"run": position, "seed": seed, "metric": name}
                parts.append(pd.DataFrame({**facts, "round": values.index, "value": values.to_numpy()}))
    if not parts:
        return pd.DataFrame(columns=COLUMNS).astype(KINDS)
    return pd.concat(parts, ignore_index=True)


def column_per_run(table: pd.DataFrame) -> pd.DataFrame:
    """Lay the runs of one metric's long table side by side: a row for each round, nan where a run has no value."""
    return table.pivot(index="round", columns="run", values="value")


def values_by_round(run: Run, metric: str) -> pd.Series[float]:
    """Return a run's values of a metric by round, without the rounds that have none; empty if it was not logged."""
    return long_table([run], [metric]).set_index("round")["value"]
