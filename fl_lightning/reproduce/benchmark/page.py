"""The page of a benchmark: which rules beat FedAvg on which problem, by how much, with which settings, at what cost."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.elements import pipes
from fl_lightning.report.numbers import fixed
from fl_lightning.report.statistics import FEWEST_SEEDS
from fl_lightning.reproduce.benchmark.advice import advice_of
from fl_lightning.reproduce.benchmark.answers import Answer, answers_of
from fl_lightning.reproduce.benchmark.compare import CAPTION, table_of
from fl_lightning.reproduce.benchmark.gains import BASELINE, conflict_and_gain
from fl_lightning.reproduce.benchmark.picture import draw
from fl_lightning.reproduce.benchmark.problems import EDITION, Problem, problem_name, problem_of, results_of
from fl_lightning.reproduce.benchmark.search import CALLBACKS, METHOD, TESTS, TRY, rounds_of, search_of
from fl_lightning.reproduce.benchmark.space import COSINE, DECAY, RATE, place_of, values_in
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.reproduce.outcome import tables

ATTACK = "attack"  # how the names of problems with attackers begin
EDGE = 0.1  # part of a range that counts as its end
FAMILY = ", corrected for the tests of all problems by tables with shuffled names"


def write_answers(out: Path, file: str) -> int:
    """Write the page of the tuned experiments that have results below a folder.

    Args:
        out: folder of all results, as ``reproduce --out``.
        file: path of the page in Markdown. Beside it are a picture, ``<name>.png``, and for each problem a page with
            all its numbers, ``<name>-<problem>.md``.

    Returns:
        The exit status, 0.

    Raises:
        ConfigurationError: no tuned experiment has results of three searches.
    """
    problems, missing = [], []
    for experiment in experiments().values():
        if experiment.tuning is None:
            continue
        tests = results_of(experiment.id, out)
        if not tests.empty and search_of(tests).nunique() >= FEWEST_SEEDS:
            problems.append(problem_of(experiment, tests, out))
        else:
            missing.append(problem_name(experiment))
    if not problems:
        raise ConfigurationError(f"no tuned experiment has three searches in {out}: fl-lightning reproduce benchmark")
    page = Path(file)
    page.parent.mkdir(parents=True, exist_ok=True)
    for path, text in pages_of(problems, missing, page).items():
        path.write_text(text, encoding="utf-8")
    print(f"answers: {page}")
    return 0


def pages_of(problems: Sequence[Problem], missing: Sequence[str], page: Path) -> dict[Path, str]:
    """Write the texts of the page, for a path, and of the pages beside it, one for each problem; draw the picture.

    Args:
        problems: the problems that were measured.
        missing: names of those that were not.
        page: path of the page.
    """
    generator = np.random.default_rng(0)
    answers, false_gains = answers_of(problems, generator)
    chosen = _chosen_values(problems)
    whole = pd.concat({answer.problem.name: answer.once for answer in answers}, names=["problem", METHOD]).reset_index()
    text = tables.page_from(
        "benchmark.md.j2",
        edition=EDITION,
        answers=_first_table(answers, page),
        advice=[(answer.problem.name, _page_of(page, answer).name, advice_of(answer)) for answer in answers],
        tests=sum(len(answer.p) for answer in answers),
        matrix=_matrix(answers, whole),
        options=_options(problems),
        places=_places(chosen),
        agreement=_agreement(problems, generator),
        conflict=_conflict(whole, page.with_suffix(".png"), generator),
        picture=page.with_suffix(".png").name,
        test_seeds=TESTS[1],
        false_gains=false_gains,
        rounds=_span([rounds_of(problem.experiment) for problem in problems]),
        at_the_end=", ".join(_rates_at_the_end(chosen)),
        searches=_span([answer.searches for answer in answers]),
        problems=len(problems),
        missing=missing,
    )
    return {page: text, **{_page_of(page, answer): _numbers(answer, page) for answer in answers}}


def _page_of(page: Path, answer: Answer) -> Path:
    """Return the path of the page with all numbers of a problem."""
    return page.with_name(f"{page.stem}-{answer.problem.name}.md")


def _first_table(answers: Sequence[Answer], page: Path) -> str:
    """Write for each problem FedAvg's level, and the tested methods, their gains at both budgets and needs."""
    rows = []
    for answer in answers:
        level = f"{answer.once['level'][BASELINE]:.1f}"
        problem = f"[{answer.problem.name}]({_page_of(page, answer).name}), {answer.searches} searches"
        first = [problem, level]
        others = sorted(set(answer.p) - set(answer.winners), key=lambda method: -answer.once["gain"][method])
        for method in [*answer.winners, *others]:
            name = f"**{method}**" if method in answer.winners else method
            gains = [answer.gain(method), answer.gain_at_twice(method)]
            rows.append([*first, name, *gains, ", ".join(answer.price(method))])
            first = ["", ""]
    head = ["problem", "FedAvg, %", "rule", "gain", "at twice the rounds", "needs beside FedAvg"]
    return "\n".join(pipes(head, rows))


def _matrix(answers: Sequence[Answer], whole: pd.DataFrame) -> str:
    """Write the gains of all methods on all problems, and their medians without attackers."""
    names = [answer.problem.name for answer in answers]
    wide = whole[whole[METHOD].ne(BASELINE)].pivot(index=METHOD, columns="problem", values="gain")[names]
    peaceful = wide[[name for name in names if not name.startswith(ATTACK)]]
    order = pd.DataFrame({"common": peaceful.count(axis=1) * 2 >= peaceful.shape[1], "median": peaceful.median(axis=1)})
    rows = []
    for method in order.sort_values(["common", "median"], ascending=False).index:
        cells = [str(method), fixed(order["median"][method], 1, "+") if order["common"][method] else ""]
        for answer in answers:
            gain = wide[answer.problem.name][method]
            text = "" if np.isnan(gain) else fixed(gain, 1, "+")
            cells.append(f"**{text}**" if method in answer.winners else text)
        rows.append(cells)
    return "\n".join(pipes(["points over FedAvg", "median", *names], rows))


def _options(problems: Sequence[Problem]) -> str:
    """Write what each method adds to the command of a run."""
    rows = {}
    for problem in problems:
        for cell in problem.experiment.cells:
            added = f"`{shlex.join(cell.options)}`" if cell.options else ""
            rows[cell.labels[METHOD]] = [cell.labels[METHOD], added]
    return "\n".join(pipes(["rule", "options"], list(rows.values())))


def _chosen_values(problems: Sequence[Problem]) -> pd.DataFrame:
    """Return a row for each value that a search chose: its method, its option, and its place in the option's range.

    Values that are drawn from a list have an empty range.
    """
    rows = []
    for problem in problems:
        for method in dict.fromkeys(problem.tests[METHOD]):
            space = problem.space(method)
            for name in problem.chosen(method):
                for option, value in values_in(name, space).items():
                    row: dict[str, object] = {METHOD: method, "option": option, "value": value, "range": ""}
                    spec = space[option]
                    if isinstance(spec, Mapping):
                        ((scale, (low, high)),) = spec.items()
                        place = place_of(spec, float(value))
                        rows.append(row | {"range": f"{low} to {high}, {scale}", "place": place})
                    elif len(spec) > 1:
                        rows.append(row)
    return pd.DataFrame(rows)


def _places(chosen: pd.DataFrame) -> str:
    """Write, for each option that is drawn from a range, how many chosen values lie at its ends."""
    ranges = chosen[chosen["range"].ne("")]
    own = ranges["option"].str.removeprefix(f"{CALLBACKS}.")
    shared = own.eq(ranges["option"])
    ranges = ranges.assign(option=("`" + own + "`").where(shared, ranges[METHOD] + ": `" + own + "`"))
    rows = []
    for (option, span), places in ranges.groupby(["option", "range"], sort=False)["place"]:
        low, high = (places < EDGE).sum(), (places > 1 - EDGE).sum()
        rows.append([str(option), str(span), str(len(places)), str(low), str(high), fixed(places.median(), 2)])
    rows.sort(key=lambda row: -int(row[2]))
    head = [
        "option",
        "range",
        "chosen values",
        "in its lowest tenth",
        "in its highest tenth",
        "median place, 0 to 1",
    ]
    decays = chosen[chosen["option"].eq(DECAY)]["value"]
    cosines = f"{decays.eq(COSINE).sum():,} are a cosine"
    table = "\n".join(pipes(head, rows))
    return f"{table}\n\nOf {len(decays):,} choices between a constant rate and a cosine, {cosines}."


def _rates_at_the_end(chosen: pd.DataFrame) -> list[str]:
    """Name the methods of which half of the searches or more chose a learning rate at the upper end of its range."""
    rates = chosen[chosen["option"].eq(RATE)]
    at_the_end = rates["place"].gt(1 - EDGE).groupby(rates[METHOD]).mean()
    return sorted(at_the_end[at_the_end >= 0.5].index)


def _agreement(problems: Sequence[Problem], generator: np.random.Generator) -> str:
    """Write, for each problem with twice three searches, what either three of them find; empty if there is none."""
    rows = []
    for problem in problems:
        searches = sorted(set(search_of(problem.tests)))
        if len(searches) < 2 * FEWEST_SEEDS:
            continue
        halves = [searches[:FEWEST_SEEDS], searches[FEWEST_SEEDS : 2 * FEWEST_SEEDS]]
        answers = [answers_of([problem.of(half)], generator)[0][0] for half in halves]
        one, other = (answer.once["gain"].drop(BASELINE) for answer in answers)
        rows.append(
            [problem.name, *(_best(answer) for answer in answers), fixed(one.corr(other, method="spearman"), 2)]
        )
    head = ["problem", "three searches", "three others", "rank correlation of all rules' gains"]
    return "\n".join(pipes(head, rows)) if rows else ""


def _best(answer: Answer) -> str:
    """Name the candidates in their order, with their gains."""
    return ", ".join(f"{method} {answer.gain(method)}" for method in answer.p)


def _conflict(whole: pd.DataFrame, picture: Path, generator: np.random.Generator) -> str:
    """Correlate less conflict with gain within the problems without attackers, and draw both."""
    baseline = whole[whole[METHOD].eq(BASELINE)].set_index("problem")["after"]
    rules = whole[whole[METHOD].ne(BASELINE) & ~whole["problem"].str.startswith(ATTACK)]
    table = rules[[METHOD, "problem", "gain"]].assign(less=rules["problem"].map(baseline) - rules["after"])
    draw(table, picture)
    value, low, high = conflict_and_gain(table, generator)
    shown = "no relation is shown" if low <= 0 <= high else "a relation is shown"
    return f"{fixed(value, 2)} (95 % interval {fixed(low, 2)} to {fixed(high, 2)}): {shown}"


def _span(counts: Sequence[int]) -> str:
    """Write the smallest and the largest of some numbers."""
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _numbers(answer: Answer, page: Path) -> str:
    """Write a problem's page: its setting, its gains, and what its searches chose."""
    problem = answer.problem
    chosen = []
    for row in problem.choices().to_dict("records"):
        chosen.append([row[METHOD], str(row["search"]), row[TRY], fixed(row[problem.measure], 1)])
    head, rows = table_of(problem.tests, problem.measure, answer.p)
    return tables.page_from(
        "benchmark-problem.md.j2",
        name=problem.name,
        claim=problem.experiment.claim,
        setting=_setting(problem),
        rounds=rounds_of(problem.experiment),
        page=page.name,
        table="\n".join(pipes(head, rows)),
        caption=CAPTION.format(family=FAMILY),
        chosen="\n".join(pipes(["method", "search", "chosen", "tests, %"], chosen)),
    )


def _setting(problem: Problem) -> str:
    """Return what the config of a problem says of itself, up to the commands."""
    lines = []
    for line in Path(problem.experiment.config).read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or not text:
            break
        lines.append(text)
    return "\n".join(lines)
