"""Experiments: the runs that are shown in one part of a page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from fl_lightning.commands import some
from fl_lightning.report.compared.comparison import Comparison
from fl_lightning.report.compared.methods import Method, as_key, group, problem_of
from fl_lightning.runs.reader import Run, experiment_folder


@dataclass(frozen=True)
class Experiment:
    """Methods that are shown in one part of the page.

    Attributes:
        name: name of the experiment; "" for the only one of a page.
        methods: the methods, at least one.
        notes: sentences on the runs for the reader.
        comparisons: the methods compared with a baseline, one comparison per problem.
    """

    name: str
    methods: Sequence[Method]
    notes: Sequence[str] = ()
    comparisons: Sequence[Comparison] = ()


def experiments(runs: Sequence[Run]) -> list[Experiment]:
    """Group runs by the folder of their experiment, then into methods.

    Folders with runs on the same problem (data and network) make one experiment, so that their methods are compared. An
    experiment is named by its folders, relative to the folder that contains all experiments.
    """
    found: dict[Path, list[Run]] = {}
    for run in runs:
        found.setdefault(experiment_folder(run.folder.resolve()), []).append(run)
    common = Path(os.path.commonpath(list(found)))
    named = {folder: folder.name if folder == common else folder.relative_to(common).as_posix() for folder in found}
    made = []
    for folders in (together := _together({folder: {*map(_problem, each)} for folder, each in found.items()})):
        name = some([named[folder] for folder in folders]) if len(together) > 1 else ""
        made.append(Experiment(name, *group([run for folder in folders for run in found[folder]])))
    return made


def _problem(run: Run) -> str:
    """Return the settings that define the run's problem as text, or the run's folder if the run has no config."""
    return as_key(problem_of(run.settings)) if run.settings else str(run.folder)


def _together(problems: Mapping[Path, set[str]]) -> list[list[Path]]:
    """Group the folders that share a problem; each folder is in one group."""
    parts: list[list[Path]] = []
    for folder, posed in problems.items():
        shared = [part for part in parts if any(posed & problems[each] for each in part)]
        parts = [*(part for part in parts if part not in shared), [*chain(*shared), folder]]
    return parts
