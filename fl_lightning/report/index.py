"""Experiments: the runs that stand in one part of a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fl_lightning.report.comparison import Comparison
from fl_lightning.report.methods import Method, group
from fl_lightning.runs.reader import Run

OWNER = 5  # levels from a run of sweep or reproduce, <name>/runs/<hash>/seed_<n>/run/version_0, up to <name>


@dataclass(frozen=True)
class Experiment:
    """Methods that stand in one part of the page.

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

    The folder is the one above ``version_N``; for runs of ``sweep`` and ``reproduce``, which lie in
    ``<name>/runs/<hash>/seed_<n>/run/version_0``, it is ``<name>``. An experiment is named by its folder, relative to
    the folder that all experiments are in.
    """
    found: dict[Path, list[Run]] = {}
    for run in runs:
        found.setdefault(_experiment(run.folder.resolve()), []).append(run)
    common = Path(os.path.commonpath(list(found)))
    named = {folder: folder.relative_to(common).as_posix() for folder in found}
    return [
        Experiment("" if len(found) == 1 else folder.name if named[folder] == "." else named[folder], *group(each))
        for folder, each in found.items()
    ]


def _experiment(folder: Path) -> Path:
    levels = [folder, *folder.parents]
    swept = len(levels) > OWNER and levels[2].name.startswith("seed_") and levels[OWNER - 1].name == "runs"
    return levels[OWNER] if swept else folder.parent
