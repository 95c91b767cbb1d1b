"""Dry run: says what would be trained, how long it takes and how much disk it needs, and what stands in the way."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rich.filesize import decimal

from fl_lightning.fit.messages import counted
from fl_lightning.reproduce.figures import is_trained
from fl_lightning.reproduce.jobs import Job
from fl_lightning.reproduce.papers import Experiment
from fl_lightning.reproduce.preflight import Findings
from fl_lightning.reproduce.progress import duration
from fl_lightning.reproduce.tracker import Planned, last_end
from fl_lightning.reproduce.trials import Trial, Trials, kind_of

BUDGET_S = 300.0  # seconds after which no further kind of cell is tried


def dry_run(planned: Planned, findings: Findings, trials: Trials, processes: int, out: Path) -> int:
    """Print the plan, the time and the disk that it takes, and what the pre-flight has found; train nothing.

    Args:
        planned: the experiments, each with the jobs of its cells.
        findings: the findings of the pre-flight.
        trials: the trials of all jobs that are trained.
        processes: number of jobs at a time.
        out: the folder of all results.

    Returns:
        The exit status: 0 if the runs could start; 1 if a round that was tried failed; 2 if the pre-flight failed.
    """
    trained = [(experiment, [job for _, job in pairs]) for experiment, pairs in planned if is_trained(experiment)]
    todo = [job for job in _each_once(trained) if not job.finished]
    for experiment, pairs in planned:
        print(f"{experiment.id}: {_runs([job for _, job in pairs], is_trained(experiment))}")
    if len(planned) > 1:
        print(f"in total: {counted(len(_each_once(trained)), 'different run')}; {len(todo):,} to train")
    lacking = {job.folder for job in findings.without}
    if here := [job for job in todo if job.folder not in lacking]:
        if len(here) < len(todo):
            print(f"without data: {counted(len(todo) - len(here), 'run')}, which the next lines leave out")
        folders = {job.folder for job in here}
        known = _tried([[job for job in jobs if job.folder in folders] for _, jobs in trained], trials)
        print("\n".join(_estimated(here, known, trials, processes, out)))
    elif todo:
        print("time and disk: unknown until the data are there")
    for line in findings.to_come:
        print(f"to download: {line}")
    for line in [*findings.problems, *trials.failures]:
        print(f"pre-flight failed: {line}")
    if not findings.problems and not trials.failures:
        print("pre-flight passed: configs, data and measures" if not findings.to_come else "pre-flight passed: configs")
    return 2 if findings.problems else 1 if trials.failures else 0


def _each_once(trained: Sequence[tuple[Experiment, Sequence[Job]]]) -> list[Job]:
    return list({job.folder: job for _, jobs in trained for job in jobs}.values())


def _runs(jobs: Sequence[Job], trained: bool) -> str:
    seeds = sorted({job.seed for job in jobs})
    cells = counted(len({job.folder.parent for job in jobs}), "cell")
    if not trained:
        return f"{cells}, drawn without training"
    finished = sum(folder.finished for folder in {job.folder: job for job in jobs}.values())
    runs = counted(len({job.folder for job in jobs}), "run")
    between = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"{cells}, {between}: {runs}" + (f", {finished:,} finished before" if finished else "")


def _tried(todo: Sequence[Sequence[Job]], trials: Trials) -> dict[str, Trial]:
    """Try kinds of cells, of each experiment in turn, until BUDGET_S is spent; return what is known, by kind."""
    began = time.monotonic()
    turns = itertools.zip_longest(*(trials.kinds(jobs) for jobs in todo))
    order = dict.fromkeys(kind for turn in turns for kind in turn if kind is not None)
    found = {}
    for kind in order:
        if trials.is_known(kind) or time.monotonic() - began < BUDGET_S:
            found[kind] = trials.of(kind)
    return {kind: trial for kind, trial in found.items() if trial is not None}


def _estimated(todo: Sequence[Job], known: Mapping[str, Trial], trials: Trials, processes: int, out: Path) -> list[str]:
    """Write two lines: the time and the disk space that jobs take."""
    if not known:
        return ["time and disk: unknown, since no round could be tried"]
    kinds = [kind_of(job.config) for job in todo]
    usual = {kind: known.get(kind) for kind in kinds}
    seconds, sizes = [], []
    for job, kind in zip(todo, kinds, strict=True):
        like = [trial] if (trial := usual[kind]) else list(known.values())
        seconds.append(fmean(each.seconds(job.rounds - job.rounds_done) for each in like))
        sizes.append(fmean(each.size(job.rounds) for each in like))
    at_once = f", {processes} runs at a time, if each is as fast as one alone" if processes > 1 else ""
    time_line = f"time: about {duration(last_end(seconds, processes))}{at_once} ({_source(usual, trials.tried)})"
    free = decimal(shutil.disk_usage(next(each for each in (out, *out.absolute().parents) if each.is_dir())).free)
    return [time_line, f"disk: about {decimal(round(sum(sizes)))} in {out} (checkpoints, metrics, arrays); {free} free"]


def _source(kinds: Mapping[str, Trial | None], tried: int) -> str:
    """Say how the estimate was made."""
    unknown = sum(trial is None for trial in kinds.values())
    before = len(kinds) - unknown - tried
    parts = [f"a first round of {counted(tried, 'kind')} of cells was timed"] if tried else []
    parts += [f"{counted(before, 'kind')} as in finished runs"] if before > 0 else []
    parts += [f"{counted(unknown, 'kind')} estimated by the mean of the others"] if unknown else []
    return ", ".join(parts)
