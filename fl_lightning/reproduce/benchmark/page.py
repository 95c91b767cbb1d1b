"""The page of a benchmark: who beats FedAvg on which problem, by how much, how sure, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.elements import pipes
from fl_lightning.report.numbers import fixed, fixed_interval
from fl_lightning.report.statistics import FEWEST_SEEDS
from fl_lightning.reproduce.benchmark.confirming import confirmation_of
from fl_lightning.reproduce.benchmark.gains import BASELINE, MOMENTUM, conflict_and_gain, false_beats, gains
from fl_lightning.reproduce.benchmark.picture import draw
from fl_lightning.reproduce.benchmark.problems import Problem, problem_of, results_of
from fl_lightning.reproduce.benchmark.tuning import FRESH, METHOD, TRY
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.reproduce.outcome import tables

CAPTION = (
    "* clear at 5 %, by a paired t test over the seeds and Holm's method over the rows; p is of that test. time: of a "
    "run, in FedAvg's. conflict: share of the pairs of updates that point apart, before → after correction."
)
SHUFFLES = 100  # times that methods are exchanged within seeds
HEAD = ["method", "%", "− FedAvg", "p", "− FedAvgM", "time", "bytes", "conflict"]


def write_answers(out: Path, file: str) -> int:
    """Write the page of the tuned experiments that have results below a folder, and a picture beside it.

    Args:
        out: folder of all results, as ``reproduce --out``.
        file: path of the page in Markdown.

    Returns:
        The exit status, 0.

    Raises:
        ConfigurationError: no tuned experiment has results of three seeds.
    """
    problems = []
    for experiment in experiments().values():
        results = results_of(experiment.id, out) if experiment.tuning else pd.DataFrame()
        if not results.empty and results["seed"].nunique() >= FEWEST_SEEDS:
            problems.append(problem_of(experiment, results, out))
    if not problems:
        raise ConfigurationError(f"no tuned experiment has three seeds in {out}: fl-lightning reproduce benchmark")
    page = Path(file)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(page_of(problems, page), encoding="utf-8")
    print(f"answers: {page}")
    return 0


def page_of(problems: Sequence[Problem], page: Path) -> str:
    """Write the page's text, and draw the picture beside it."""
    whole = pd.concat({problem.name: problem.gains for problem in problems}, names=["problem", METHOD]).reset_index()
    rules = whole[whole[METHOD].ne(BASELINE)]
    wide = rules.pivot(index=METHOD, columns="problem", values="gain")[[problem.name for problem in problems]]
    is_common = wide.count(axis=1) * 2 >= len(problems)  # the others stand below, since one problem says little
    order = pd.DataFrame({"common": is_common, "median": wide.median(axis=1)})
    wide = wide.loc[order.sort_values(["common", "median"], ascending=False).index]
    loses = rules.groupby(METHOD)["loses"].sum().loc[wide.index]
    generator = np.random.default_rng(0)
    wrong = []
    for problem in problems:
        if len(problem.best):
            wrong += false_beats(problem.fresh, problem.experiment.measures[0], SHUFFLES, generator)
    tested = sum(len(problem.best) for problem in problems)
    return tables.page_from(
        "benchmark.md.j2",
        answers=_answers(problems),
        advice=[_advice(problem) for problem in problems],
        seldom=", ".join(wide.index[wide.median(axis=1).le(0)]),
        worse=", ".join(f"{method} ({count})" for method, count in loses[loses.gt(0)].items()),
        matrix=_matrix(wide, problems),
        between=_between_problems(wide),
        conflict=_conflict(rules, whole, page.with_suffix(".png"), generator),
        picture=page.with_suffix(".png").name,
        kept=_kept(problems),
        wrong=f"{sum(wrong)} of {SHUFFLES * tested:,}",
        draws=f"{np.count_nonzero(wrong)} of {len(wrong):,}",
        problems=[_section(problem) for problem in problems],
        fresh=f"{FRESH[0]} to {FRESH[-1]}",
        hours=fixed(_seconds(problems) / 3600, 1),
        runs=f"{sum(len(problem.results) + len(problem.fresh) + len(problem.tries) for problem in problems):,}",
    )


def _answers(problems: Sequence[Problem]) -> str:
    """Write the first table: for each problem FedAvg, and what the best methods gain on fresh seeds."""
    rows = []
    for problem in problems:
        clear, open_ = [], []
        for row in problem.best.itertuples():
            text = f"{row.Index} {_points(row.gain, row.half)}"
            if row.beats:
                clear.append(f"**{text}** ({_costs(row)})")
            else:
                open_.append(text)
        compared = problem.confirmed if len(problem.confirmed) else problem.gains
        level = f"{compared['level'][BASELINE]:.1f}"
        rows.append([f"[{problem.name}](#{problem.name})", level, "; ".join(clear) or "none", "; ".join(open_)])
    head = ["problem", "FedAvg, %", "clearly better, in points", "not clearly"]
    return "\n".join(pipes(head, rows))


def _points(gain: float, half: float) -> str:
    return fixed_interval(gain, half, 1, "+")


def _costs(row: Any) -> str:
    return f"{fixed(row.seconds, 1)} × time, {fixed(row.bytes, 1)} × bytes"


def _advice(problem: Problem) -> str:
    """Answer an experiment's question in a sentence: the largest clear gain, and the fastest one."""
    question = problem.experiment.claim
    winners = problem.best[problem.best["beats"].astype(bool)]
    others = problem.gains.index[problem.gains["beats"] & ~problem.gains.index.isin(problem.best.index)]
    beside = f" In the comparison of all rules also {', '.join(others)}." if len(others) else ""
    if winners.empty:
        return f"{question} None is clearly better on fresh seeds.{beside}"
    best = winners.iloc[0]
    fastest = winners.sort_values("seconds").iloc[0]
    text = f"{question} **{best.name}**, {_points(best.gain, best.half)} points ({_costs(best)})"
    if best.name != MOMENTUM and not np.isnan(best.momentum):
        text += f", which is {_points(best.momentum, best.momentum_half)} to FedAvgM"
    if fastest.name != best.name:
        text += f"; the fastest is **{fastest.name}**, {_points(fastest.gain, fastest.half)} ({_costs(fastest)})"
    return f"{text}.{beside}"


def _matrix(wide: Any, problems: Sequence[Problem]) -> str:
    """Write the gains of all methods on all problems, their medians, and on how many problems they are above zero."""
    clear = set()
    for problem in problems:
        for table in (problem.gains, problem.best):
            told = table.index[(table["beats"] | table["loses"]).astype(bool)]
            clear |= {(method, problem.name) for method in told}
    rows = []
    for method, gained in wide.iterrows():
        known = gained.dropna()
        cells = [str(method), fixed(known.median(), 1, "+"), f"{known.gt(0).sum()} of {len(known)}"]
        for name, gain in gained.items():
            text = "" if np.isnan(gain) else fixed(gain, 1, "+")
            cells.append(f"**{text}**" if (method, name) in clear else text)
        rows.append(cells)
    return "\n".join(pipes(["points over FedAvg", "median", "above FedAvg", *wide.columns], rows))


def _kept(problems: Sequence[Problem]) -> str:
    """Say how many gains whose interval was above zero were above zero on fresh seeds, and how many clearly so."""
    seen, above, clear = 0, 0, 0
    for problem in problems:
        for row in problem.best.itertuples():
            first = problem.gains.loc[row.Index]
            if first["gain"] - first["half"] > 0:
                seen += 1
                above += row.gain > 0
                clear += row.beats
    return f"{above} of {seen} are above zero again, {clear} of them clearly"


def _between_problems(wide: pd.DataFrame) -> str:
    """Say how alike the methods' ranks are on two problems."""
    ranks = wide.corr("spearman", min_periods=5).to_numpy()
    pairs = ranks[np.triu_indices(len(ranks), 1)]
    known = pairs[~np.isnan(pairs)]
    if not len(known):
        return "unknown"
    return f"{fixed(float(np.median(known)), 2)} in the median, from {fixed(known.min(), 2)} to {fixed(known.max(), 2)}"


def _conflict(rules: pd.DataFrame, whole: pd.DataFrame, picture: Path, generator: np.random.Generator) -> str:
    """Correlate less conflict with gain over all methods and problems, and draw both."""
    baseline = whole[whole[METHOD].eq(BASELINE)].set_index("problem")["after"]
    less = rules["problem"].map(baseline) - rules["after"]
    table = rules[[METHOD, "problem", "gain"]].assign(less=less)
    draw(table, picture)
    value, low, high = conflict_and_gain(table, generator)
    within = {str(name): float(rows["less"].corr(rows["gain"], "spearman")) for name, rows in table.groupby("problem")}
    order = sorted(within, key=lambda name: within[name])
    lowest, highest = (f"{fixed(within[name], 2)} ({name})" for name in (order[0], order[-1]))
    return (
        f"{fixed(value, 2)} (95 % interval {fixed(low, 2)} to {fixed(high, 2)}); within single problems it goes from "
        f"{lowest} to {highest}, {fixed(float(np.median([*within.values()])), 2)} in the median"
    )


def print_answers(experiment: Experiment, out: Path) -> None:
    """Print the gains of an experiment's methods, and those of the best on fresh seeds.

    Of methods without results below ``out``, the results that come with the package are shown.
    """
    named = {experiment.id: experiment.id, confirmation_of(experiment): "the best, on fresh seeds"}
    place = HEAD.index("bytes")  # left out, so that the table fits a terminal
    for id, title in named.items():
        results = results_of(id, out, experiment.scale)
        if results.empty or BASELINE not in set(results[METHOD]):
            continue
        shown = []
        for row in [HEAD, *_rows(gains(results, experiment.measures[0]))]:
            shown.append(row[:place] + row[place + 1 :])
        Console().print(tables.framed(f"{title}: {experiment.metric}", shown[0], shown[1:], caption=CAPTION))


def _rows(own: pd.DataFrame) -> list[list[str]]:
    """Write the gains of a problem's methods, with the columns of HEAD."""
    rows = []
    asked = own["seeds"].max()
    for row in own.reset_index().to_dict("records"):
        name = row[METHOD] if row["seeds"] == asked else f"{row[METHOD]} ({row['seeds']} of {asked} seeds)"
        is_clear = row["beats"] or row["loses"]
        star = " *" if is_clear else ""
        level = fixed(row["level"], 1)
        gain = _points(row["gain"], row["half"])
        momentum = _points(row["momentum"], row["momentum_half"])
        costs = [f"× {fixed(row[cost], 1)}" for cost in ("seconds", "bytes")]
        conflict = f"{fixed(row['before'], 2)} → {fixed(row['after'], 2)}"
        rows.append([name, level, f"{gain}{star}", fixed(row["p"], 3), momentum, *costs, conflict])
    return rows


def _section(problem: Problem) -> dict[str, str]:
    """Write a problem's tables: the comparison, the confirmation, and the tries that chose each method's options."""
    tries = []
    for row in problem.tries.to_dict("records"):
        tries.append([row[METHOD], row[TRY], fixed(row[problem.experiment.measures[0]], 1)])
    return {
        "name": problem.name,
        "claim": problem.experiment.claim,
        "setting": _setting(problem.experiment),
        "table": "\n".join(pipes(HEAD, _rows(problem.gains))),
        "confirmed": "\n".join(pipes(HEAD, _rows(problem.confirmed))),
        "tries": "\n".join(pipes(["method", "try", "validation, %"], tries)),
    }


def _setting(experiment: Experiment) -> str:
    """Return what the config of a problem says of itself, up to the commands."""
    lines = []
    for line in Path(experiment.config).read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or not text:
            break
        lines.append(text)
    return "\n".join(lines)


def _seconds(problems: Sequence[Problem]) -> float:
    """Add the seconds of all runs, the tries included."""
    total = 0.0
    for problem in problems:
        for table in (problem.results, problem.fresh, problem.tries):
            total += table["seconds"].sum() if len(table) else 0.0
    return total
