"""Group runs that differ only in their seed into methods, and name each method by its distinctive settings."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.statistics import band
from fl_lightning.runs.config.settings import CLASS, RULES, short, told
from fl_lightning.runs.folder.files import NOT_RECORDED
from fl_lightning.runs.reader import Run

NAMED_BY = 3  # largest number of settings in a method's name
CONFLICT = "conflict/ratio"


@dataclass(frozen=True, eq=False)
class Method:
    """Runs that differ only in their seed, to be averaged.

    Attributes:
        name: name that tells the method from the others.
        runs: one run per seed.
        settings: settings of the runs, except the seed, by dotted names; empty for runs without config.
        problem: name of the problem (data, clients, network) that the method is tried on; "" if all methods are
            compared on one problem.
        short: name that tells the method from the others on its problem.
    """

    name: str
    runs: Sequence[Run]
    settings: Mapping[str, Any]
    problem: str = ""
    short: str = ""

    def series(self, metric: str) -> dict[int, pd.Series]:
        """Return a metric by round of each run that has values, by the run's position among the runs."""
        columns = {n: run.metrics[metric].dropna() for n, run in enumerate(self.runs) if metric in run.metrics}
        return {n: column for n, column in columns.items() if len(column)}

    def band(self, metric: str) -> pd.DataFrame:
        """Summarise a metric over the seeds, for each round with a value: ``mean``, ``low``, ``high``, ``seeds``."""
        return band(pd.DataFrame(self.series(metric)))

    def label(self, run: Run) -> str:
        """Return the name of one of the method's runs."""
        return self.name if run.seed is None else f"{self.name}, seed {run.seed}"


def every_run(methods: Sequence[Method]) -> list[tuple[str, Run]]:
    """Return all runs of the methods, each with its name."""
    return [(method.label(run), run) for method in methods for run in method.runs]


def logged(methods: Iterable[Method]) -> list[str]:
    """Return the names of the metrics that any run has, in the order of the runs."""
    return list(dict.fromkeys(name for method in methods for run in method.runs for name in run.names))


def group(runs: Sequence[Run], names: Sequence[str] = ()) -> tuple[list[Method], list[str]]:
    """Group runs into methods, in the order of the runs.

    A run without config is a method of its own. If several runs have the same settings and seed, the last one counts.

    Args:
        runs: the runs, at least one.
        names: one name for each method, in place of names made from settings.

    Returns:
        The methods, and notes for the reader on runs that were left out.

    Raises:
        ConfigurationError: there are not as many names as methods, or two names are the same.
    """
    found: dict[str, dict[Any, Run]] = {}
    notes = []
    for run in runs:
        same = found.setdefault(as_key(run.settings) if run.settings else str(run.folder), {})
        if run.seed in same:
            sure = ", as far as its config.yaml records them" if run.config.get(NOT_RECORDED) else ""
            notes.append(f"{same[run.seed].folder} is left out: {run.folder} has the same settings and seed{sure}.")
        same[run.seed] = run
    every = [list(each.values()) for each in found.values()]
    settings = [each[0].settings for each in every]
    own = list(_names(settings, [each[0] for each in every]))
    if names and (len(names) != len(own) or len(set(names)) != len(names)):
        raise ConfigurationError(
            f"--names must give each of the {len(own)} methods ({'; '.join(own)}) a name of its own, got {len(names)} "
            f"({'; '.join(names)})"
        )
    called = zip(names or own, every, settings, strict=True)
    return by_problem([Method(*each, short=each[0]) for each in called], keep=bool(names)), notes


def unfinished(methods: Sequence[Method]) -> list[str]:
    """Return notes for the reader on runs with fewer rounds than their configs ask for."""
    rounds = [(label, *run.rounds) for label, run in every_run(methods)]
    return [f"{label} has {done:,} of {asked:,} rounds." for label, done, asked in rounds if asked and done < asked]


def resumed(methods: Sequence[Method]) -> list[str]:
    """Return notes for the reader on runs that went on with other settings or data."""
    return [
        f"{label} went on with other settings from round {each.get('round')}: {told(each['changed'])}."
        for label, run in every_run(methods)
        for each in run.resumptions
        if isinstance(each.get("changed"), dict)
    ]


def by_problem(methods: Sequence[Method], keep: bool = False) -> list[Method]:
    """Name the problem of each method, and the method among those on the same problem.

    Two methods are tried on the same problem if they agree in all settings of the data and of the network. If no two
    methods do, all are compared with one another, and no problem is named.

    Args:
        methods: the methods, in any order.
        keep: whether the name of a method stays its name on the problem.
    """
    groups: dict[str, list[Method]] = {}
    for method in methods:
        groups.setdefault(as_key(problem_of(method.settings)), []).append(method)
    if len(groups) in (1, len(methods)):
        return [replace(method, short=method.name) for method in methods]
    firsts = [each[0] for each in groups.values()]
    titles = _names([problem_of(first.settings) for first in firsts], [first.runs[0] for first in firsts])
    found = {}
    for title, each in zip(titles, groups.values(), strict=True):
        shorts = _names([method.settings for method in each], [method.runs[0] for method in each])
        for method, name in zip(each, shorts, strict=True):
            found[method] = replace(method, problem=title, short=method.name if keep else name)
    return [found[method] for method in methods]


def as_key(settings: Mapping[str, Any]) -> str:
    """Write settings as a text that is the same for equal settings, in whichever order."""
    return json.dumps(dict(settings), sort_keys=True)


def problem_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the settings that define a problem, not those of the method that is tried on the problem."""
    return {name: settings[name] for name in settings if name.startswith(("data.", "model.client.network"))}


def _names(every: Sequence[Mapping[str, Any]], runs: Sequence[Run]) -> Iterator[str]:
    """Name methods by up to three settings that tell them apart, or by their rules, or by the run folder."""
    differ, apart = differing(every), 1
    axes = [axis for axis in differ if len({str(each[axis]) for each in every if axis in each}) > 1]
    telling: list[str] = []
    for axis in dict.fromkeys([*axes, *differ]):  # settings that only some methods have come last
        names = {str([each.get(name) for name in (*telling, axis)]) for each in every}
        if len(names) > apart and len(telling) < NAMED_BY:
            telling, apart = [*telling, axis], len(names)
    common = os.path.commonpath([run.folder.resolve() for run in runs])
    taken: dict[str, int] = {}
    for chosen, run in zip(every, runs, strict=True):
        folder = os.path.relpath(run.folder.resolve(), common) if len(runs) > 1 else run.folder.resolve().name
        spoken = [_spoken(axis, chosen[axis], {*axes, *telling}) for axis in telling if axis in chosen]
        name = ", ".join(spoken) or str(chosen.get(RULES, folder))
        taken[name] = taken.get(name, 0) + 1
        yield name if taken[name] == 1 else f"{name} #{taken[name]}"


def differing(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names, of settings or of a grid's axes, that differ in value, or that some lack."""
    names = dict.fromkeys(name for each in every for name in each)
    return [name for name in names if len({str(each.get(name)) for each in every}) > 1]


def _spoken(axis: str, value: Any, axes: Collection[str]) -> str:
    if axis == RULES or axis.endswith(CLASS):
        return str(value)
    unclear = [each for each in axes if short(each) == short(axis)] != [axis]
    return f"{'.'.join(axis.split('.')[-2:]) if unclear else short(axis)}={value}"
