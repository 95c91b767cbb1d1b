"""Runs that differ in their seed alone are one method; what its settings have of its own is its name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fl_lightning.errors import ConfigurationError
from fl_lightning.runs.reader import Run
from fl_lightning.runs.seeds import band
from fl_lightning.runs.settings import CLASS, RULES, short

NAMED_BY = 3  # settings at most


@dataclass(frozen=True, eq=False)
class Method:
    """Runs that are to be averaged.

    Attributes:
        name: what tells it from the others.
        runs: one a seed.
        settings: the runs' settings but the seed, by dotted names; empty for runs without config.
    """

    name: str
    runs: Sequence[Run]
    settings: Mapping[str, Any]

    def band(self, metric: str) -> pd.DataFrame:
        """A metric over the rounds in which it was logged: ``mean``, ``low``, ``high`` and number of ``seeds``."""
        columns = {n: run.metrics[metric].dropna() for n, run in enumerate(self.runs) if metric in run.metrics}
        return band(pd.DataFrame(columns))

    def label(self, run: Run) -> str:
        """What one of its runs is called."""
        return self.name if run.seed is None else f"{self.name}, seed {run.seed}"


def every_run(methods: Sequence[Method]) -> list[tuple[str, Run]]:
    """All runs with what they are called."""
    return [(method.label(run), run) for method in methods for run in method.runs]


def group(runs: Sequence[Run], names: Sequence[str] = ()) -> tuple[list[Method], list[str]]:
    """The methods of some runs, in the order in which they come.

    A run without config is a method of its own. Of several with the same settings and seed the last one counts.

    Args:
        runs: at least one.
        names: one for each method, in place of what their settings say.

    Returns:
        The methods; and what a reader must know: which runs were left out.

    Raises:
        ConfigurationError: there are not as many names as methods.
    """
    found: dict[str, dict[Any, Run]] = {}
    known: dict[str, dict[str, Any]] = {}
    notes = []
    for run in runs:
        chosen = dict(run.settings)
        key = json.dumps(chosen, sort_keys=True) if chosen else str(run.folder)
        same = found.setdefault(key, {})
        known[key] = chosen
        if run.seed in same:
            notes.append(f"{same[run.seed].folder} is left out: {run.folder} has the same settings and seed.")
        same[run.seed] = run
    own = list(_names(list(known.values()), [next(iter(each.values())) for each in found.values()]))
    if names and (len(names) != len(own) or len(set(names)) != len(names)):
        raise ConfigurationError(
            f"--names must give each of the {len(own)} methods ({'; '.join(own)}) a name of its own, got {len(names)} "
            f"({'; '.join(names)})"
        )
    chosen_names = names or own
    return [
        Method(name, list(found[key].values()), known[key]) for name, key in zip(chosen_names, found, strict=True)
    ], notes


def _names(every: Sequence[Mapping[str, Any]], runs: Sequence[Run]) -> Iterator[str]:
    """Names of methods, each by as few settings as tell them apart, or by its run's folder where there are none."""
    axes, apart = varying(every), 1
    telling: list[str] = []
    for axis in axes:
        names = {str([each.get(name) for name in (*telling, axis)]) for each in every}
        if len(names) > apart and len(telling) < NAMED_BY:
            telling, apart = [*telling, axis], len(names)
    common = os.path.commonpath([run.folder.resolve() for run in runs])
    taken: dict[str, int] = {}
    for chosen, run in zip(every, runs, strict=True):
        folder = os.path.relpath(run.folder.resolve(), common) if len(runs) > 1 else run.folder.resolve().name
        spoken = [_spoken(axis, chosen[axis], axes) for axis in telling if axis in chosen]
        name = ", ".join(spoken) or str(chosen.get(RULES, folder))
        taken[name] = taken.get(name, 0) + 1
        yield name if taken[name] == 1 else f"{name} #{taken[name]}"


def varying(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that have several values among the methods that have them."""
    axes = dict.fromkeys(name for each in every for name in each)
    return [axis for axis in axes if len({str(each[axis]) for each in every if axis in each}) > 1]


def _spoken(axis: str, value: Any, axes: Sequence[str]) -> str:
    if axis == RULES or axis.endswith(CLASS):
        return str(value)
    unclear = [each for each in axes if short(each) == short(axis)] != [axis]
    return f"{'.'.join(axis.split('.')[-2:]) if unclear else short(axis)}={value}"
