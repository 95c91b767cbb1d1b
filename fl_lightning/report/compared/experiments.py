"""Experiments: the runs that are shown in one part of a page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fl_lightning.commands import some
from fl_lightning.report.compared.comparison import Comparison
from fl_lightning.report.compared.methods import Method, as_key, make_methods, problem_settings
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
    in_folder: dict[Path, list[Run]] = {}
    problems: dict[Path, set[str]] = {}
    for run in runs:
        folder = experiment_folder(run.folder.resolve())
        in_folder.setdefault(folder, []).append(run)
        problems.setdefault(folder, set()).add(_problem(run))
    common = Path(os.path.commonpath(list(in_folder)))
    together = _join_by_problem(problems)
    parts = []
    for folders in together:
        own: list[Run] = []
        for folder in folders:
            own += in_folder[folder]
        name = some([_name(folder, common) for folder in folders]) if len(together) > 1 else ""
        parts.append(Experiment(name, *make_methods(own)))
    return parts


def _name(folder: Path, common: Path) -> str:
    """Name an experiment's folder relative to the folder that contains all."""
    return folder.name if folder == common else folder.relative_to(common).as_posix()


def _problem(run: Run) -> str:
    """Return the settings that define the run's problem as text, or the run's folder if the run has no config."""
    return as_key(problem_settings(run.settings)) if run.settings else str(run.folder)


def _join_by_problem(problems: Mapping[Path, set[str]]) -> list[list[Path]]:
    """Group the folders that share a problem; each folder is in one group."""
    groups: list[list[Path]] = []
    for folder, own in problems.items():
        # The folder joins all groups with one of its problems to one.
        joined, others = [], []
        for members in groups:
            if any(own & problems[member] for member in members):
                joined += members
            else:
                others.append(members)
        groups = [*others, [*joined, folder]]
    return groups
