"""The page of a benchmark: who beats FedAvg on which problem, by how much, how sure, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import CONFIGS
from fl_lightning.report.elements import pipes
from fl_lightning.report.numbers import fixed, fixed_interval
from fl_lightning.report.statistics import FEWEST_SEEDS
from fl_lightning.reproduce.benchmark.gains import BASELINE, conflict_and_gain, false_beats, gains
from fl_lightning.reproduce.benchmark.picture import draw
from fl_lightning.reproduce.benchmark.tuning import METHOD, TRY, tries_of
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.reproduce.outcome import tables
from fl_lightning.reproduce.outcome.numbers import CHANGED, RESULTS, read

MEASURED = CONFIGS / "results"  # the results of the benchmark that come with the package
CAPTION = (
    "* clear at 5 %, by a paired t test over the seeds and Holm's method over the rows; p is of that test. time: of a "
    "run, in FedAvg's. conflict: share of the pairs of updates that point apart, before → after correction."
)
SHUFFLES = 100  # times that methods are exchanged within seeds
NAMED = 3  # methods that the first table names
HEAD = ["method", "%", "− FedAvg", "p", "− FedAvgM", "time", "bytes", "conflict"]

Results = Mapping[str, tuple[Experiment, pd.DataFrame]]  # by the problem's name


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
    results = {}
    for experiment in experiments().values():
        table = results_of(experiment, out) if experiment.tuning else pd.DataFrame()
        if not table.empty and table["seed"].nunique() >= FEWEST_SEEDS:
            results[experiment.id.partition("/")[2]] = (experiment, table)
    if not results:
        raise ConfigurationError(f"no tuned experiment has three seeds in {out}: fl-lightning reproduce benchmark")
    page = Path(file)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(page_of(results, out, page), encoding="utf-8")
    print(f"answers: {page}")
    return 0


def page_of(results: Results, out: Path, page: Path) -> str:
    """Write the page's text, and draw the picture beside it."""
    by_problem = {name: gains(table, experiment.measures[0]) for name, (experiment, table) in results.items()}
    whole = pd.concat(by_problem, names=["problem", METHOD]).reset_index()
    rules = whole[whole[METHOD].ne(BASELINE)]
    wide = rules.pivot(index=METHOD, columns="problem", values="gain")[list(by_problem)]
    wide = wide.loc[wide.mean(axis=1).sort_values(ascending=False).index]
    beats = rules.groupby(METHOD)["beats"].sum().loc[wide.index]
    loses = rules.groupby(METHOD)["loses"].sum().loc[wide.index]
    generator = np.random.default_rng(0)
    wrong = []
    for experiment, table in results.values():
        wrong += false_beats(table, experiment.measures[0], SHUFFLES, generator)
    return tables.page_from(
        "benchmark.md.j2",
        answers=_answers(by_problem),
        advice=[_advice(experiment, by_problem[name]) for name, (experiment, _) in results.items()],
        never=", ".join(beats.index[beats.eq(0)]),
        worse=", ".join(f"{method} ({count})" for method, count in loses[loses.gt(0)].items()),
        matrix=_matrix(wide, rules),
        between=_between_problems(wide),
        conflict=_conflict(rules, whole, page.with_suffix(".png"), generator),
        picture=page.with_suffix(".png").name,
        wrong=f"{sum(wrong)} of {SHUFFLES * len(rules):,}",
        draws=f"{np.count_nonzero(wrong)} of {len(wrong):,}",
        problems=[_section(experiment, by_problem[name], out) for name, (experiment, _) in results.items()],
        hours=fixed(_seconds(results, out) / 3600, 1),
        runs=f"{sum(len(table) for _, table in results.values()):,}",
    )


def _answers(by_problem: Mapping[str, Any]) -> str:
    """Write the first table: for each problem FedAvg, how many methods clearly beat it, and those that gain most."""
    rows = []
    for name, own in by_problem.items():
        named = []
        for row in own.drop(BASELINE)[:NAMED].itertuples():
            star = " *" if row.beats else ""
            named.append(f"{row.Index} {fixed_interval(row.gain, row.half, 1, '+')}{star}")
        level = fixed(own.loc[BASELINE, "level"], 1)
        clear = f"{own['beats'].sum()} of {len(own) - 1}"
        rows.append([f"[{name}](#{name})", level, clear, ", ".join(named)])
    return "\n".join(pipes(["problem", "FedAvg, %", "clearly better", "the largest gains, in points"], rows))


def _advice(experiment: Experiment, own: Any) -> str:
    """Answer an experiment's question in a sentence."""
    winners = own[own["beats"]]
    if winners.empty:
        return f"{experiment.claim} None is clearly better with these seeds."
    best = winners.iloc[0]
    beside = ""
    if best.name != "FedAvgM":
        beside = f" ({fixed_interval(best.momentum, best.momentum_half, 1, '+')} to FedAvgM)"
    return (
        f"{experiment.claim} **{best.name}**, {fixed_interval(best.gain, best.half, 1, '+')} points{beside}, at "
        f"{fixed(best.seconds, 1)} times FedAvg's time."
    )


def _matrix(wide: Any, rules: Any) -> str:
    """Write the gains of all methods on all problems, clear ones in bold."""
    clear = (rules["beats"] | rules["loses"]).set_axis(pd.MultiIndex.from_frame(rules[[METHOD, "problem"]]))
    rows = []
    for method, gained in wide.iterrows():
        cells = [str(method)]
        for problem, gain in gained.items():
            text = "" if np.isnan(gain) else fixed(gain, 1, "+")
            cells.append(f"**{text}**" if text and clear[method, problem] else text)
        rows.append(cells)
    return "\n".join(pipes(["points over FedAvg", *wide.columns], rows))


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
    return f"{fixed(value, 2)} (95 % interval {fixed(low, 2)} to {fixed(high, 2)})"


def print_answers(experiment: Experiment, out: Path) -> None:
    """Print the gains of an experiment's methods; of methods without results below ``out``, those that we measured."""
    results = results_of(experiment, out)
    if results.empty or BASELINE not in set(results[METHOD]):
        return
    place = HEAD.index("bytes")  # left out, so that the table fits a terminal
    shown = []
    for row in [HEAD, *_rows(gains(results, experiment.measures[0]))]:
        shown.append(row[:place] + row[place + 1 :])
    title = f"{experiment.id}: {experiment.metric}"
    Console().print(tables.framed(title, shown[0], shown[1:], caption=CAPTION))


def results_of(experiment: Experiment, out: Path) -> pd.DataFrame:
    """Read an experiment's results below a folder; of methods and seeds without any, those that come with the package.

    Returns:
        The results, see :func:`fl_lightning.reproduce.outcome.numbers.collect`; empty if the folder has none. Runs with
        other settings than the config's stand alone.
    """
    own = read(out / experiment.id / RESULTS)
    ours = read(MEASURED / experiment.scale / experiment.id / RESULTS)
    if own.empty or ours.empty or CHANGED in own:
        return own
    others = ~ours[METHOD].isin(own[METHOD]) & ours["seed"].isin(own["seed"])
    return pd.concat([own, ours[others]], ignore_index=True)


def _rows(own: pd.DataFrame) -> list[list[str]]:
    """Write the gains of a problem's methods, with the columns of HEAD."""
    rows = []
    for row in own.reset_index().to_dict("records"):
        is_clear = row["beats"] or row["loses"]
        level = fixed(row["level"], 1)
        gain = fixed_interval(row["gain"], row["half"], 1, "+")
        momentum = fixed_interval(row["momentum"], row["momentum_half"], 1, "+")
        costs = [f"× {fixed(row[cost], 1)}" for cost in ("seconds", "bytes")]
        conflict = f"{fixed(row['before'], 2)} → {fixed(row['after'], 2)}"
        star = " *" if is_clear else ""
        rows.append([row[METHOD], level, f"{gain}{star}", fixed(row["p"], 3), momentum, *costs, conflict])
    return rows


def _section(experiment: Experiment, own: pd.DataFrame, out: Path) -> dict[str, str]:
    """Write the table of a problem, and that of the tries from which each method's options were chosen."""
    tries = []
    for row in read(out / tries_of(experiment) / RESULTS).to_dict("records"):
        tries.append([row[METHOD], row[TRY], fixed(row[experiment.measures[0]], 1)])
    return {
        "name": experiment.id.partition("/")[2],
        "claim": experiment.claim,
        "table": "\n".join(pipes(HEAD, _rows(own))),
        "tries": "\n".join(pipes(["method", "try", "validation, %"], tries)),
    }


def _seconds(results: Results, out: Path) -> float:
    """Add the seconds of all runs, the tries included."""
    total = 0.0
    for experiment, table in results.values():
        tries: Any = read(out / tries_of(experiment) / RESULTS)
        total += table["seconds"].sum() + (tries["seconds"].sum() if len(tries) else 0)
    return total
