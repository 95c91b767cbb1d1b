"""The comparison of one problem's methods: their searches, the tests of what was chosen, and a table of gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version

import pandas as pd
from rich.console import Console

from fl_lightning.report.numbers import fixed, fixed_interval
from fl_lightning.report.statistics import LEVEL, holm
from fl_lightning.reproduce.benchmark.gains import BASELINE, gains
from fl_lightning.reproduce.benchmark.problems import EDITION, problem_name, results_of
from fl_lightning.reproduce.benchmark.search import BUDGET, METHOD, TRY, search_of, searched, short_name
from fl_lightning.reproduce.benchmark.space import placed
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.outcome import tables
from fl_lightning.reproduce.run_options import RunOptions
from fl_lightning.reproduce.running import run

CAPTION = (
    "Gains with 95 % t intervals over the searches; * clear at 5 %, by a paired t test{family}. Upload, download: what "
    "is sent in a round, in FedAvg's. Conflict: share of the pairs of updates that point apart."
)
HOLM = " and Holm's method over the rows"


def compare_methods(experiment: Experiment, runs: RunOptions, rule: str | None = None) -> int:
    """Search settings for an experiment's methods, test them, and print what each method adds to FedAvg.

    Args:
        experiment: an experiment with a tuning.
        runs: seeds, options and folders of the runs, as read from the command line.
        rule: the class of a user's own rule, which alone is tested then.

    Returns:
        The exit status, see :func:`run`.
    """
    tests, status = searched(experiment, runs)
    if tests is not None:
        status = run([tests], replace(runs, subset=[]))
        if not runs.dry_run and status <= 1:
            print_gains(experiment, runs, rule and short_name(rule))
    return status


def print_gains(experiment: Experiment, runs: RunOptions, own: str | None) -> None:
    """Print the gains of an experiment's methods; of methods without results, those that come with the package."""
    results = results_of(experiment.id, runs.out / experiment.scale, experiment.scale)
    if results.empty or not {BASELINE, own or BASELINE} <= set(results[METHOD]):
        return  # the tests of one of them failed, each with a line of its own
    measure = experiment.measures[0]
    once = gains(results[results[BUDGET].eq(1)], measure)["p"]
    tested = once[[own]] if own else once.drop(BASELINE)
    p = dict(zip(tested.index, holm(tested.tolist()), strict=True))
    head, rows = table_of(results, measure, p)
    caption = CAPTION.format(family="" if own else HOLM)
    Console().print(tables.framed(f"{experiment.id}: {experiment.metric}", head, rows, caption=caption))
    if own:
        print(f"\n{row_of(experiment, results, own)}")


def row_of(experiment: Experiment, results: pd.DataFrame, own: str) -> str:
    """Write what a paper can say of one's own rule: its gain, its test, what its searches chose, the versions.

    Args:
        experiment: the experiment, with its tuning.
        results: the tests of the rule and of FedAvg at both budgets.
        own: the rule's name.
    """
    tuning = experiment.tuning
    assert tuning is not None
    chosen = results[results[METHOD].eq(own)].drop_duplicates(TRY)
    space = {**tuning.every, **tuning.method[own]}
    at_once, at_twice = (
        gains(rows, experiment.measures[0]).to_dict("index")[own] for _, rows in results.groupby(BUDGET)
    )
    gain, twice = (points(table["gain"], table["half"]) for table in (at_once, at_twice))
    searches = int(at_once["searches"])
    lines = [
        f"{own}: {gain} points over FedAvg, {twice} at twice the rounds",
        f"({EDITION}, {problem_name(experiment)}, {searches} {'search' if searches == 1 else 'searches'}; "
        f"p {fixed(at_once['p'], 3)}, a paired t test of this rule alone)",
        "chosen, with the place in the range from 0 to 1:",
    ]
    for search, name in zip(search_of(chosen), chosen[TRY], strict=True):
        lines.append(f"  search {search}: {placed(name, space)}")
    lines.append(", ".join(f"{name} {version(name)}" for name in ("fl-lightning", "torch")))
    return "\n".join(lines)


def table_of(results: pd.DataFrame, measure: str, p: Mapping[str, float]) -> tuple[list[str], list[list[str]]]:
    """Write the gains of a problem's methods: the heads of the columns, and the rows.

    Args:
        results: the tests of a problem at both budgets.
        measure: name of the column to compare.
        p: the corrected p value of each method that is tested, in the problem's rounds.
    """
    at_once, at_twice = (gains(rows, measure) for _, rows in results.groupby(BUDGET))
    asked = at_once["searches"].max()
    tells_worst = at_once["worst"].notna().any()
    both = at_once.assign(p=pd.Series(p), gain_twice=at_twice["gain"], half_twice=at_twice["half"])
    rows = []
    for row in both.reset_index().to_dict("records"):
        name = row[METHOD]
        if row["searches"] < asked:
            name += f" ({row['searches']} of {asked} searches)"
        star = " *" if row["p"] < LEVEL else ""
        gain = points(row["gain"], row["half"])
        twice = points(row["gain_twice"], row["half_twice"])
        sent = f"× {fixed(row['up'], 1)}, {fixed(row['down'], 1)}"
        conflict = f"{fixed(row['before'], 2)} → {fixed(row['after'], 2)}"
        worst = [fixed(row["worst"], 1)] if tells_worst else []
        rows.append([name, fixed(row["level"], 1), *worst, f"{gain}{star}", fixed(row["p"], 3), twice, sent, conflict])
    worst = ["worst tenth, %"] if tells_worst else []
    measures = ["upload, download", "conflict, before → after"]
    return ["method", "%", *worst, "− FedAvg", "p", "at twice the rounds", *measures], rows


def points(gain: float, half: float) -> str:
    """Write a gain with its interval, with one digit and a sign."""
    return fixed_interval(gain, half, 1, "+")
