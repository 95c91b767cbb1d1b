"""Pre-flight: finds what would make runs fail, or tables lack a measure, before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from fl_lightning.engine.data import FederatedDataModule
from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.fit.command import fetch_missing
from fl_lightning.fit.reading import callbacks_of, data_of
from fl_lightning.report.comparison import default_metric
from fl_lightning.reproduce.figures import is_trained
from fl_lightning.reproduce.jobs import Job
from fl_lightning.reproduce.papers import Experiment
from fl_lightning.reproduce.progress import announce
from fl_lightning.reproduce.tracker import Planned
from fl_lightning.reproduce.trials import Trials
from fl_lightning.runs.catalogue import is_item, measured

USUAL = "val/top1"  # the measure of a sweep that names none, if its runs log it
MOST = 3  # experiments that a line names
# Packages whose classes log a metric in the first round or never.
LIBRARIES = ("fl_lightning", "lightning", "torch", "torchvision", "torchmetrics")


@dataclass(frozen=True)
class Findings:
    """Holds the findings of the pre-flight, one line each.

    Attributes:
        planned: the experiments with their jobs; each has a measure, unless data are missing.
        problems: callbacks that cannot be made, missing data and unknown measures.
        to_come: data that are missing and will be downloaded.
        without: the jobs that lack data. If there are any, measures are not looked for.
    """

    planned: Planned
    problems: Sequence[str]
    to_come: Sequence[str]
    without: Sequence[Job]


def preflight(planned: Planned, trials: Trials, fetch: bool) -> Findings:
    """Look for callbacks, data and measures of all experiments, and choose a measure for those that name none.

    Args:
        planned: the experiments, each with the jobs of its cells.
        trials: the trials of all jobs that are trained.
        fetch: whether to download data that are missing and can be downloaded.
    """
    every = [job for _, pairs in planned for _, job in pairs]
    if refused := refused_callbacks(every):
        return Findings(planned, refused, (), ())
    lacking, to_come, without = missing_data(every, fetch)
    if lacking or to_come:
        return Findings(planned, lacking, to_come, without)
    planned = [(with_measure(experiment, [job for _, job in pairs], trials), pairs) for experiment, pairs in planned]
    trained = [(experiment, [job for _, job in pairs]) for experiment, pairs in planned if is_trained(experiment)]
    unknown = [line for experiment, jobs in trained for line in unknown_measures(experiment, jobs, trials)]
    return Findings(planned, unknown, (), ())


def refused_callbacks(jobs: Iterable[Job]) -> list[str]:
    """Make the callbacks of all jobs that are not finished, and return one line for each list that cannot be made."""
    alike: dict[str, Job] = {}
    for job in jobs:
        if not job.finished:
            alike.setdefault(json.dumps(job.config["trainer"]["callbacks"], sort_keys=True, default=str), job)
    lines = list[str]()
    for job in alike.values():
        try:
            callbacks_of(job.config)
        except ConfigurationError as error:
            lines.append(f"{' '.join(job.group)}: {error}")
    return lines


def missing_data(jobs: Iterable[Job], fetch: bool) -> tuple[list[str], list[str], list[Job]]:
    """Look for the data of all jobs that are not finished, without reading them.

    Args:
        jobs: the jobs.
        fetch: whether to download data that are missing and can be downloaded.

    Returns:
        One line for each data set that is missing, or that a job's arguments do not allow; one for each data set that
        is missing and will be downloaded; and the jobs that lack data.
    """
    by_data: dict[str, list[Job]] = {}
    for job in jobs:
        if not job.finished:
            by_data.setdefault(json.dumps(job.config["data"], sort_keys=True, default=str), []).append(job)
    missing: dict[str, tuple[FederatedDataModule, list[Job]]] = {}
    lacking, to_come, without = dict[str, None](), list[str](), list[Job]()
    for alike in by_data.values():
        try:
            data = data_of(alike[0].config)
        except ConfigurationError as error:
            lacking[f"{' '.join(alike[0].group)}: {error}"] = None
        else:
            if (words := data.missing()) is not None:
                missing.setdefault(words, (data, []))[1].extend(alike)
    for words, (data, needy) in missing.items():
        if not fetch and data.downloads():
            to_come.append(f"{words} ({_needed_by(needy)})")
        elif (still := _missing_still(data)) is not None:
            lacking[f"{still} ({_needed_by(needy)})"] = None
        else:
            continue
        without += needy
    return list(lacking), to_come, without


def _needed_by(jobs: Sequence[Job]) -> str:
    ids = list(dict.fromkeys(job.group[0] for job in jobs))
    more = f" and {len(ids) - MOST} more" if len(ids) > MOST else ""
    return f"for {', '.join(ids[:MOST])}{more}"


def _missing_still(data: FederatedDataModule) -> str | None:
    """Download missing data where possible, and say in one line which data are still missing; None if none are."""
    try:
        fetch_missing(data)
    except ConfigurationError as error:
        return str(error)
    return None


def with_measure(experiment: Experiment, jobs: Sequence[Job], trials: Trials) -> Experiment:
    """Give an experiment that names no measures the accuracy, or what a report of its runs would compare them by.

    Args:
        experiment: the experiment; one that names measures stays as it is.
        jobs: the experiment's jobs.
        trials: the trials of all jobs.
    """
    if experiment.measures:
        return experiment
    logged = _logged({USUAL}, jobs, trials) or {USUAL}  # if a trial fails, the run says why
    measure = default_metric(sorted(name for name in logged if not name.endswith("/*")))
    if measure != USUAL:
        announce(f"{experiment.id}: measured by {measure}, since the runs log no {USUAL}; --measures names others")
    return replace(experiment, metric=measure, measures=(measure,))


def unknown_measures(experiment: Experiment, jobs: Sequence[Job], trials: Trials) -> list[str]:
    """Look for the measures of an experiment in what its runs log.

    A measure that the first round does not log is unknown, unless a class of the user's own may log it later.

    Args:
        experiment: the experiment, which names the measures.
        jobs: the experiment's jobs.
        trials: the trials of all jobs.

    Returns:
        One line for each unknown measure; none if a trial fails, because the run then says why.
    """
    wanted = {_starred(measured(name)[0]) for name in experiment.measures}
    if (logged := _logged(wanted, jobs, trials)) is None:
        return []
    classes = (name for job in jobs for name in _classes(job.config))
    own = next((name for name in classes if name.partition(".")[0] not in LIBRARIES), None)
    lines = []
    for name in sorted(wanted - logged):
        near = nearest(name, logged)
        if own and not near:
            announce(f"{experiment.id}: nothing logs {name} in the first round; {own} may log it later")
            continue
        hint = f"; did you mean {near}?" if near else ""
        lines.append(f"{experiment.id}: the runs log no {name}, but {', '.join(sorted(logged))}{hint}")
    return lines


def _logged(wanted: Set[str], jobs: Sequence[Job], trials: Trials) -> set[str] | None:
    """Collect the names of logged metrics: read begun runs, then try kinds of cells until all wanted names are found.

    Returns:
        The names found; all logged names if a wanted one is missing; None if a trial fails.
    """
    logged: set[str] = set()
    for job in jobs:
        if not wanted <= logged and job.rounds_done:
            with suppress(ConfigurationError):  # the tables, made at the end, report the damage
                logged |= set(map(_starred, job.run.names))
    for kind in trials.kinds(jobs):
        if wanted <= logged:
            break
        if (trial := trials.of(kind)) is None:
            return None
        logged |= set(map(_starred, trial.metrics))
    return logged


def _starred(name: str) -> str:
    """Replace the number of a client or a class, which may be absent in the first round, by a star."""
    return f"{name.rpartition('/')[0]}/*" if is_item(name) else name


def _classes(value: Any) -> Iterator[str]:
    """Yield the class paths in a config."""
    if isinstance(value, dict):
        yield from ([str(value["class_path"])] if "class_path" in value else [])
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _classes(each)
