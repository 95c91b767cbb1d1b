"""Pre-flight: looks for the callbacks, weights and data of all runs before any is trained; tells runs and hours."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from fl_lightning.commands import counted, duration, some
from fl_lightning.datamodules import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.command import fetch_missing
from fl_lightning.fit.read_config import callbacks_of, data_of, weights_of
from fl_lightning.reproduce.jobs import Job, Planned
from fl_lightning.reproduce.progress.tracker import Tracker

Made = TypeVar("Made")


def preflight(planned: Planned, fetch: bool) -> tuple[list[str], list[str]]:
    """Make the callbacks of all jobs that are not finished, and look for their weights and data, without reading them.

    Args:
        planned: the experiments, each with the jobs of its cells.
        fetch: whether to download data that are missing and can be downloaded.

    Returns:
        One line for each problem: callbacks that cannot be made, or initial weights that are missing, or else a data
        set that is missing, or that a job's arguments do not allow; and one for each data set that is missing and will
        be downloaded.
    """
    todo = [job for _, pairs in planned for _, job in pairs if not job.finished]
    # Many cells have the same callbacks or data: each different config of them is made once.
    _, refused = _make_each(callbacks_of, _alike(todo, lambda job: job.config["trainer"]["callbacks"]))
    _, lacking = _make_each(weights_of, _alike(todo, lambda job: job.config["model"]["init_from"]))
    if refused or lacking:
        return [*refused, *lacking], []
    data_sets, problems = _make_each(data_of, _alike(todo, lambda job: job.config["data"]))
    # By the words: cells that differ in their partition alone lack the same files, which are told and fetched once.
    missing: dict[str, tuple[FederatedDataModule, list[Job]]] = {}
    for data, jobs in data_sets:
        words = data.missing()
        if words is not None:
            _, needed_by = missing.setdefault(words, (data, []))
            needed_by.extend(jobs)
    to_come = []
    for words, (data, jobs) in missing.items():
        if not fetch and data.downloads():
            to_come.append(f"{words} ({_for_experiments(jobs)})")
            continue
        try:
            fetch_missing(data)
        except ConfigurationError as error:
            problems.append(f"{error} ({_for_experiments(jobs)})")
    return list(dict.fromkeys(problems)), to_come


def _make_each(
    make: Callable[[Any], Made], groups: Iterable[list[Job]]
) -> tuple[list[tuple[Made, list[Job]]], list[str]]:
    """Make a part of the config of each group of jobs; return what was made, and a line for each refusal."""
    made = []
    refusals = []
    for jobs in groups:
        try:
            made.append((make(jobs[0].config), jobs))
        except ConfigurationError as error:
            refusals.append(f"{' '.join(jobs[0].group)}: {error}")
    return made, refusals


def _alike(jobs: Iterable[Job], part: Callable[[Job], Any]) -> Collection[list[Job]]:
    """Divide jobs into those whose configs have an equal part."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        text = json.dumps(part(job), sort_keys=True, default=str)
        groups.setdefault(text, []).append(job)
    return groups.values()


def _for_experiments(jobs: Sequence[Job]) -> str:
    ids = dict.fromkeys(job.group[0] for job in jobs)
    return f"for {some(list(ids))}"


def dry_run(planned: Planned, problems: Sequence[str], to_come: Sequence[str], processes: int) -> int:
    """Print the plan, what the pre-flight has found, and the hours that begun runs tell; train nothing.

    Args:
        planned: the experiments, each with the jobs of its cells.
        problems: the problems that the pre-flight has found.
        to_come: the data that will be downloaded.
        processes: number of jobs at a time.

    Returns:
        The exit status: 0 if the runs could start, else 2.
    """
    trained = [(experiment, pairs) for experiment, pairs in planned if experiment.is_trained]
    for experiment, pairs in planned:
        print(f"{experiment.id}: {_size([job for _, job in pairs], experiment.is_trained)}")
    tracker = Tracker(trained, processes)
    tracker.update((), ())
    todo = len(tracker.jobs) - len(tracker.finished)
    if len(planned) > 1:
        print(f"in total: {counted(len(tracker.jobs), 'different run')}; {todo:,} to train")
    if todo:
        print(f"time: {_time(tracker.left(), processes)}")
    for line in to_come:
        print(f"to download: {line}")
    for line in problems:
        print(f"pre-flight failed: {line}")
    if problems:
        return 2
    print("pre-flight passed: configs" if to_come else "pre-flight passed: configs, callbacks and data")
    return 0


def _time(seconds: float | None, processes: int) -> str:
    if seconds is None:
        return "unknown until a run has begun"
    if processes > 1:
        return f"about {duration(seconds)}, {processes} runs at a time, if each is as fast as one alone"
    return f"about {duration(seconds)}"


def _size(jobs: Sequence[Job], trained: bool) -> str:
    """Write how many cells, seeds and runs an experiment has, and how many of the runs are finished."""
    cells = counted(len({job.folder.parent for job in jobs}), "cell")
    if not trained:
        return f"{cells}, drawn without training"
    by_folder = {job.folder: job for job in jobs}
    seeds = sorted({job.seed for job in jobs})
    between = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    words = f"{cells}, {between}: {counted(len(by_folder), 'run')}"
    finished = sum(job.finished for job in by_folder.values())
    return f"{words}, {finished:,} finished before" if finished else words
