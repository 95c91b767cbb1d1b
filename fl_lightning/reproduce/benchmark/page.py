"""The page of a benchmark: which rules beat FedAvg on which problem, by how much, with which settings, at what cost."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.helps.class_lists import first_sentence
from fl_lightning.report.elements import pipes
from fl_lightning.report.numbers import fixed
from fl_lightning.report.statistics import FEWEST_SEEDS, LEVEL
from fl_lightning.reproduce.benchmark.chance import searches_of, share_as_small, smallest_p
from fl_lightning.reproduce.benchmark.compare import CAPTION, points, table_of
from fl_lightning.reproduce.benchmark.gains import BASELINE, conflict_and_gain, winners
from fl_lightning.reproduce.benchmark.picture import draw
from fl_lightning.reproduce.benchmark.problems import EDITION, Problem, problem_name, problem_of, results_of
from fl_lightning.reproduce.benchmark.search import BUDGETS, CALLBACKS, METHOD, TESTS, TRY, rounds_of, search_of
from fl_lightning.reproduce.benchmark.space import COSINE, DECAY, RATE, place_of, typical, values_in
from fl_lightning.reproduce.experiments.experiment import Cell
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.reproduce.outcome import tables

ATTACK = "attack"  # how the names of problems with attackers begin
PERSONAL = "personal"  # how PersonalEvaluation's measures begin
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


@dataclass(frozen=True, eq=False)
class Answer:
    """Holds what a problem's searches answer.

    Attributes:
        problem: the problem.
        once, twice: the gains of all methods in the problem's rounds, and in twice as many.
        p: for each candidate, the corrected p value in the problem's rounds.
        winners: the candidates that are clearly better than FedAvg and not clearly below the best of them, the cheapest
            first.
    """

    problem: Problem
    once: pd.DataFrame
    twice: pd.DataFrame
    p: Mapping[str, float]
    winners: Sequence[str]


def answers_of(problems: Sequence[Problem], generator: np.random.Generator) -> tuple[list[Answer], str]:
    """Test the candidates in the problems' rounds, corrected for all tests of all problems.

    Args:
        problems: the problems.
        generator: generator of the tables with shuffled names.

    Returns:
        The answers, and how many of the tables with shuffled names that did not serve the correction have a clear gain.
    """
    measured = [searches_of(problem) for problem in problems]
    smallest = smallest_p(measured, generator)
    answers = []
    for problem, searches in zip(problems, measured, strict=True):
        once, twice = (problem.gains_at(budget) for budget in BUDGETS)
        p = {}
        for at, raw in zip(searches.candidates(), searches.p_values(), strict=True):
            p[searches.methods[at]] = share_as_small(raw, smallest)
        better = [method for method in p if p[method] < LEVEL and once["gain"][method] > 0]
        best = winners(problem.tests_at(1), problem.measure, better)
        answers.append(Answer(problem, once, twice, p, sorted(best, key=lambda method: _cost(problem, once, method))))
    wrong = sum(share_as_small(p, smallest) < LEVEL for p in smallest_p(measured, generator))
    return answers, f"{wrong:,} of {len(smallest):,}"


def _cost(problem: Problem, table: pd.DataFrame, method: str) -> tuple[int, float, float]:
    """Order methods by what they need beside FedAvg, what they send, and what they gain."""
    sent = table["up"][method] + table["down"][method]
    return len(needs_of(problem, method)), round(sent, 1), -table["gain"][method]


def needs_of(problem: Problem, method: str) -> list[str]:
    """Name what a method needs beside FedAvg, apart from what it sends."""
    tuning = problem.experiment.tuning
    assert tuning is not None
    return list(tuning.needs.get(method, ()))


def _sends(table: pd.DataFrame, method: str) -> list[str]:
    """Name what a method sends beside FedAvg."""
    sent = {"uploads": table["up"][method], "downloads": table["down"][method]}
    return [f"{fixed(times, 1)} × the {what}" for what, times in sent.items() if round(times, 1) > 1]


def pages_of(problems: Sequence[Problem], missing: Sequence[str], page: Path) -> dict[Path, str]:
    """Write the texts of the page, for a path, and of the pages beside it, one for each problem; draw the picture.

    Args:
        problems: the problems that were measured.
        missing: names of those that were not.
        page: path of the page.
    """
    generator = np.random.default_rng(0)
    answers, false_gains = answers_of(problems, generator)
    whole = pd.concat({answer.problem.name: answer.once for answer in answers}, names=["problem", METHOD]).reset_index()
    text = tables.page_from(
        "benchmark.md.j2",
        edition=EDITION,
        answers=_first_table(answers, page),
        advice=[(answer.problem.name, _page_of(page, answer).name, _advice(answer)) for answer in answers],
        tests=sum(len(answer.p) for answer in answers),
        matrix=_matrix(answers, whole),
        places=_places(problems),
        agreement=_agreement(problems, generator),
        conflict=_conflict(whole, page.with_suffix(".png"), generator),
        picture=page.with_suffix(".png").name,
        test_seeds=TESTS[1],
        false_gains=false_gains,
        rounds=_span([rounds_of(problem.experiment) for problem in problems]),
        at_the_end=", ".join(_rates_at_the_end(problems)),
        searches=_searches(problems),
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
        problem = f"[{answer.problem.name}]({_page_of(page, answer).name}), {_searches([answer.problem])} searches"
        first = [problem, level]
        others = sorted(set(answer.p) - set(answer.winners), key=lambda method: -answer.once["gain"][method])
        for method in [*answer.winners, *others]:
            name = f"**{method}**" if method in answer.winners else method
            needs = [*needs_of(answer.problem, method), *_sends(answer.once, method)]
            rows.append([*first, name, _gain(answer, method), _of(answer.twice, method), ", ".join(needs)])
            first = ["", ""]
    head = ["problem", "FedAvg, %", "rule", "gain", "at twice the rounds", "needs beside FedAvg"]
    return "\n".join(pipes(head, rows))


def _gain(answer: Answer, method: str) -> str:
    """Write a candidate's gain in the problem's rounds, with a star if it is clear."""
    star = "\\*" if answer.p[method] < LEVEL else ""
    return _of(answer.once, method) + star


def _of(table: pd.DataFrame, method: str) -> str:
    return points(table["gain"][method], table["half"][method])


def _advice(answer: Answer) -> str:
    """Answer a problem's question by the cheapest winner, or else the cheapest tested; its command beside FedAvg's."""
    text = answer.problem.experiment.claim
    shown = list(answer.winners[:1])
    if answer.winners:
        first, *others = answer.winners
        text += f" **{first}**{_what_it_does(answer.problem, first)}."
        if others:
            text += f" {' and '.join(others)} cannot be told from it."
        close = _close(answer, first)
        if close:
            text += f" Close to it, and not tested: {', '.join(close)}."
    else:
        text += f" None is proved to, over {_searches([answer.problem])} searches."
        above = [method for method in answer.p if answer.once["gain"][method] > answer.once["half"][method]]
        if above:
            cheapest = min(above, key=lambda method: _cost(answer.problem, answer.once, method))
            price = [*needs_of(answer.problem, cheapest), *_sends(answer.once, cheapest)]
            costs = f"needs {' and '.join(price)}" if price else "costs no more"
            what = _what_it_does(answer.problem, cheapest)
            gain, twice = _of(answer.once, cheapest), _of(answer.twice, cheapest)
            text += f" Worth a try, as the cheapest of those that seem to: {cheapest}{what}. It {costs}. Its gain over"
            text += f" FedAvg was {gain} (p {fixed(answer.p[cheapest], 2)}), at twice the rounds {twice}."
            shown = [cheapest]
        else:
            text += " None seems to: use FedAvg, its rate tuned."
    lines = []
    for method in [*shown, BASELINE]:
        lines += [f"# {method}", command_of(answer.problem, method)]
    return "\n".join([text, "", "<!-- not run: on a config of yours -->", "```bash", *lines, "```"])


def _close(answer: Answer, best: str) -> list[str]:
    """Name the methods that were not tested, whose interval is above FedAvg and not clearly below the best method."""
    once = answer.once
    above = once.index[(once["gain"] > once["half"]) & ~once.index.isin(list(answer.p))]
    tests = answer.problem.tests_at(1)
    return [method for method in above if len(winners(tests, answer.problem.measure, [best, method])) > 1]


def _what_it_does(problem: Problem, method: str) -> str:
    """Return what the docstring of a method's first class says that it does, after a comma; empty for no class."""
    from fl_lightning import callbacks  # here, because the import takes seconds

    words = re.findall(r"\w+", " ".join(_cell_of(problem, method).options))
    classes = [getattr(callbacks, word) for word in words if hasattr(callbacks, word)]
    if not classes:
        return ""
    sentence = first_sentence(classes[0]).partition(" (")[0]
    return f", which {sentence[:1].lower()}{sentence[1:]}"


def _cell_of(problem: Problem, method: str) -> Cell:
    return next(cell for cell in problem.experiment.cells if cell.labels[METHOD] == method)


def command_of(problem: Problem, method: str) -> str:
    """Write the command that trains a method on a user's config, with the means of what its searches chose."""
    parts = ["fl-lightning fit --config YOURS.yaml"]
    if problem.measure.startswith(PERSONAL):
        parts.append("--trainer.callbacks+=PersonalEvaluation")  # a rule's arguments go to the last of the callbacks
    parts += [shlex.quote(argument) for argument in _cell_of(problem, method).options]
    for name, value in typical(_chosen(problem, method), _space(problem, method)).items():
        if name != DECAY:
            parts.append(f"--{name}={value}")
        elif value == COSINE:
            parts += [f"--{DECAY}=CosineAnnealingLR", f"--{DECAY}.T_max=ROUNDS"]
    return " ".join(parts)


def _chosen(problem: Problem, method: str) -> list[str]:
    """Return the names of the settings that a method's searches chose."""
    choices = chosen_in(problem)
    return list(choices[choices[METHOD].eq(method)][TRY])


def chosen_in(problem: Problem) -> pd.DataFrame:
    """Return a row for each method and search: its ``search``, what it chose, and the mean of its tests."""
    tests = problem.tests_at(1)
    by_choice = tests.assign(search=search_of(tests)).groupby([METHOD, "search", TRY])
    return by_choice[problem.measure].mean().reset_index()


def _space(problem: Problem, method: str) -> dict[str, Any]:
    tuning = problem.experiment.tuning
    assert tuning is not None
    return {**tuning.every, **tuning.method[method]}


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


def _places(problems: Sequence[Problem]) -> str:
    """Write, for each option that is drawn from a range, how many chosen values lie at its ends."""
    places: dict[tuple[str, str], list[float]] = {}
    decays: list[str] = []
    for problem in problems:
        for method in dict.fromkeys(problem.tests[METHOD]):
            space = _space(problem, method)
            for name in _chosen(problem, method):
                for option, value in values_in(name, space).items():
                    spec = space[option]
                    if isinstance(spec, Mapping):
                        ((scale, (low, high)),) = spec.items()
                        own = option.removeprefix(f"{CALLBACKS}.")
                        what = f"`{option}`" if own == option else f"{method}: `{own}`"
                        place = place_of(spec, float(value))
                        places.setdefault((what, f"{low} to {high}, {scale}"), []).append(place)
                    elif option == DECAY and len(space[option]) > 1:
                        decays.append(value)
    rows = []
    for (what, span), found in sorted(places.items(), key=lambda item: -len(item[1])):
        low, high = sum(place < EDGE for place in found), sum(place > 1 - EDGE for place in found)
        rows.append([what, span, str(len(found)), str(low), str(high), fixed(float(np.median(found)), 2)])
    head = [
        "option",
        "range",
        "chosen values",
        "in its lowest tenth",
        "in its highest tenth",
        "median place, 0 to 1",
    ]
    table = "\n".join(pipes(head, rows))
    cosines = f"{decays.count(COSINE):,} are a cosine"
    return f"{table}\n\nOf {len(decays):,} choices between a constant rate and a cosine, {cosines}."


def _rates_at_the_end(problems: Sequence[Problem]) -> list[str]:
    """Name the methods of which half of the searches or more chose a learning rate at the upper end of its range."""
    places: dict[str, list[float]] = {}
    for problem in problems:
        for method in dict.fromkeys(problem.tests[METHOD]):
            space = _space(problem, method)
            if RATE not in space:
                continue
            for name in _chosen(problem, method):
                place = place_of(space[RATE], float(values_in(name, space)[RATE]))
                places.setdefault(method, []).append(place)
    return sorted(method for method, found in places.items() if np.mean(np.array(found) > 1 - EDGE) >= 0.5)


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
    return ", ".join(f"{method} {_gain(answer, method)}" for method in answer.p)


def _conflict(whole: pd.DataFrame, picture: Path, generator: np.random.Generator) -> str:
    """Correlate less conflict with gain within the problems without attackers, and draw both."""
    baseline = whole[whole[METHOD].eq(BASELINE)].set_index("problem")["after"]
    rules = whole[whole[METHOD].ne(BASELINE) & ~whole["problem"].str.startswith(ATTACK)]
    table = rules[[METHOD, "problem", "gain"]].assign(less=rules["problem"].map(baseline) - rules["after"])
    draw(table, picture)
    value, low, high = conflict_and_gain(table, generator)
    shown = "no relation is shown" if low <= 0 <= high else "a relation is shown"
    return f"{fixed(value, 2)} (95 % interval {fixed(low, 2)} to {fixed(high, 2)}): {shown}"


def _searches(problems: Sequence[Problem]) -> str:
    """Say how many searches the problems have."""
    return _span([search_of(problem.tests).nunique() for problem in problems])


def _span(counts: Sequence[int]) -> str:
    """Write the smallest and the largest of some numbers."""
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _numbers(answer: Answer, page: Path) -> str:
    """Write a problem's page: its setting, its gains, and what its searches chose."""
    problem = answer.problem
    chosen = []
    for row in chosen_in(problem).to_dict("records"):
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
