"""Group runs that differ only in their seed into methods, and name each method by its distinctive settings."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.compared.long_table import column_per_run, long_table
from fl_lightning.report.statistics import band
from fl_lightning.runs.config.settings import CLASS, RULES, changes_text, short
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

    def values(self, metric: str) -> pd.DataFrame:
        """Return the values of a metric as a :func:`long_table` of the method's runs."""
        return long_table(self.runs, [metric])

    def series(self, metric: str) -> dict[int, pd.Series]:
        """Return a metric by round of each run that has values, by the run's position among the runs."""
        table = self.values(metric).set_index("round")
        series = {}
        for run in table["run"].unique():
            series[int(run)] = table.loc[table["run"] == run, "value"]
        return series

    def band(self, metric: str) -> pd.DataFrame:
        """Summarise a metric over the seeds, for each round with a value: ``mean``, ``low``, ``high``, ``seeds``."""
        return band(column_per_run(self.values(metric)))

    def label(self, run: Run) -> str:
        """Return the name of one of the method's runs."""
        return self.name if run.seed is None else f"{self.name}, seed {run.seed}"


def every_run(methods: Iterable[Method]) -> list[tuple[str, Run]]:
    """Return all runs of the methods, each with its name."""
    return [(method.label(run), run) for method in methods for run in method.runs]


def metric_names(methods: Iterable[Method]) -> list[str]:
    """Return the names of the metrics that any run has, in the order of the runs."""
    names: dict[str, None] = {}
    for _, run in every_run(methods):
        names |= dict.fromkeys(run.names)
    return list(names)


def better_values(methods: Iterable[Method], metric: str) -> Literal["lower", "higher", ""] | None:
    """Tell which values of a metric are better, see :meth:`Run.better`; None, too, if the runs do not agree."""
    said = {run.better(metric) for _, run in every_run(methods) if metric in run.names}
    return said.pop() if len(said) == 1 else None


def make_methods(runs: Sequence[Run], names: Sequence[str] = ()) -> tuple[list[Method], list[str]]:
    """Group runs into methods, in the order of the runs.

    A run without config is a method of its own. If several runs have the same settings and seed, the last one counts.

    Args:
        runs: the runs, at least one.
        names: one name for each method, in place of names made from settings.

    Returns:
        The methods, and notes for the reader: on runs that are left out, that have not finished, and that went on with
        other settings.

    Raises:
        ConfigurationError: there are not as many names as methods, or two names are the same.
    """
    by_settings: dict[str, dict[Any, Run]] = {}  # and then by seed
    notes = []
    for run in runs:
        key = as_key(run.settings) if run.settings else str(run.folder)
        by_seed = by_settings.setdefault(key, {})
        if run.seed in by_seed:
            notes.append(_say_left_out(by_seed[run.seed], run))
        by_seed[run.seed] = run
    methods = []
    for by_seed in by_settings.values():
        seeds = list(by_seed.values())
        methods.append(Method("", seeds, seeds[0].settings))
    own = _names(methods)
    if names and (len(names) != len(own) or len(set(names)) != len(names)):
        raise ConfigurationError(
            f"--names must give each of the {len(own)} methods ({'; '.join(own)}) a name of its own, got {len(names)} "
            f"({'; '.join(names)})"
        )
    named = [replace(method, name=name) for method, name in zip(methods, names or own, strict=True)]
    methods = place_on_problems(named, keep_names=bool(names))
    return methods, [*notes, *_say_unfinished(methods), *say_changed(methods)]


def _say_left_out(earlier: Run, later: Run) -> str:
    """Say that a run has the same settings and seed as a later one."""
    sure = ", as far as its config.yaml records them" if later.config.get(NOT_RECORDED) else ""
    return f"{earlier.folder} is left out: {later.folder} has the same settings and seed{sure}."


def _say_unfinished(methods: Sequence[Method]) -> list[str]:
    """Say which runs have fewer rounds than their configs ask for."""
    notes = []
    for label, run in every_run(methods):
        done, asked = run.rounds
        if asked and done < asked:
            notes.append(f"{label} has {done:,} of {asked:,} rounds.")
    return notes


def say_changed(methods: Sequence[Method]) -> list[str]:
    """Say which runs went on with other settings or data."""
    notes = []
    for label, run in every_run(methods):
        for resumption in run.resumptions:
            changed = resumption.get("changed")
            if isinstance(changed, dict):
                since = resumption.get("round")
                notes.append(f"{label} went on with other settings from round {since}: {changes_text(changed)}.")
    return notes


def place_on_problems(methods: Sequence[Method], keep_names: bool = False) -> list[Method]:
    """Name the problem of each method, and the method among those on the same problem.

    Two methods are tried on the same problem if they agree in all settings of the data and of the network. If no two
    methods do, all are compared with one another, and no problem is named.

    Args:
        methods: the methods, in any order.
        keep_names: whether the name of a method stays its name on the problem.
    """
    on_problem: dict[str, list[Method]] = {}
    for method in methods:
        on_problem.setdefault(as_key(problem_settings(method.settings)), []).append(method)
    if len(on_problem) in (1, len(methods)):
        return [replace(method, short=method.name) for method in methods]
    problems = []
    for first, *_ in on_problem.values():
        problems.append(replace(first, settings=problem_settings(first.settings)))
    placed = {}
    for problem, rivals in zip(_names(problems), on_problem.values(), strict=True):
        for method, short_name in zip(rivals, _names(rivals), strict=True):
            placed[method] = replace(method, problem=problem, short=method.name if keep_names else short_name)
    return [placed[method] for method in methods]


def as_key(settings: Mapping[str, Any]) -> str:
    """Write settings as a text that is the same for equal settings, in whichever order."""
    return json.dumps(dict(settings), sort_keys=True)


def problem_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the settings that define a problem, not those of the method that is tried on the problem."""
    return {name: settings[name] for name in settings if name.startswith(("data.", "model.client.network"))}


def _names(methods: Sequence[Method]) -> list[str]:
    """Name methods by up to three settings that tell them apart, or by their rules, or by the folder of a run."""
    every = [method.settings for method in methods]
    differing = differing_names(every)
    axes = [axis for axis in differing if _has_several_values(axis, every)]
    telling = _choose_telling(every, [*axes, *differing])  # settings that only some methods have come last
    folders = [method.runs[0].folder.resolve() for method in methods]
    common = folders[0].parent if len(folders) == 1 else os.path.commonpath(folders)
    names = []
    taken = Counter[str]()
    for settings, folder in zip(every, folders, strict=True):
        words = []
        for axis in telling:
            if axis in settings:
                words.append(_in_words(axis, settings[axis], {*axes, *telling}))
        name = ", ".join(words) or str(settings.get(RULES, os.path.relpath(folder, common)))
        taken[name] += 1
        names.append(name if taken[name] == 1 else f"{name} #{taken[name]}")
    return names


def _has_several_values(axis: str, every: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the methods that have a setting differ in its value."""
    return len({str(settings[axis]) for settings in every if axis in settings}) > 1


def _choose_telling(every: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> list[str]:
    """Choose up to three settings, each of which tells more methods apart than those before it do."""
    telling: list[str] = []
    apart = 1
    for axis in dict.fromkeys(axes):
        kinds = {str(list(map(settings.get, [*telling, axis]))) for settings in every}
        if len(kinds) > apart and len(telling) < NAMED_BY:
            telling.append(axis)
            apart = len(kinds)
    return telling


def differing_names(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names, of settings or of a grid's axes, that differ in value, or that some lack."""
    names: dict[str, None] = {}
    for settings in every:
        names |= dict.fromkeys(settings)
    return [name for name in names if len({str(settings.get(name)) for settings in every}) > 1]


def _in_words(axis: str, value: Any, axes: Iterable[str]) -> str:
    """Write a setting as "alpha=0.1", by two parts of its dotted name if another axis has the same last part."""
    if axis == RULES or axis.endswith(CLASS):
        return str(value)
    name = short(axis)
    if [short(other) for other in axes].count(name) > 1:
        name = ".".join(axis.split(".")[-2:])
    return f"{name}={value}"
