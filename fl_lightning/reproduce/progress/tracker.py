"""Tracker: the progress and results of jobs so far, and the estimated time that remains."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from fl_lightning.report.statistics import interval
from fl_lightning.reproduce.experiments.choosing import in_words
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.jobs import Job, Planned, differing_axes
from fl_lightning.reproduce.outcome.numbers import UNREADABLE, USUAL, measure, unknown_measures, with_measure
from fl_lightning.runs.catalogue import metric_and_factor
from fl_lightning.runs.display.progress import ADVICE, time_left
from fl_lightning.runs.folder.run_folder import newest_in

KEPT = "another command with other --measures trains nothing again"


@dataclass(frozen=True)
class Row:
    """One cell of an experiment in the progress display.

    Attributes:
        name: the cell's labels, after the experiment's id if there are several experiments.
        experiment: the cell's experiment.
        jobs: the cell's jobs, one per seed.
    """

    name: str
    experiment: Experiment
    jobs: Sequence[Job]

    @property
    def measure(self) -> str:
        """Name of the metric that the display shows: the experiment's first measure."""
        return next(iter(self.experiment.measures), USUAL)


def rows_of(planned: Planned) -> list[Row]:
    """Make one row for each cell, in the order of the plan."""
    rows = []
    for experiment, pairs in planned:
        axes = differing_axes(pairs)
        for cell, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
            name = in_words(cell.labels, axes)
            if len(planned) > 1 or not axes:
                name = f"{experiment.id} {name}"
            jobs = {job.folder: job for _, job in group}  # a sweep may name a value twice
            rows.append(Row(name.strip(), experiment, list(jobs.values())))
    return rows


class Tracker:
    """Follows jobs while they train.

    Args:
        planned: the experiments, each with the jobs of its cells; jobs with the same folder are trained once.
        processes: number of jobs at a time.
        shorter: an option of the command that makes the runs shorter; "" for none.

    Attributes:
        rows: the cells.
        jobs: all different jobs.
        busy: the jobs under way.
        finished: folders of the finished jobs, in the order in which they finished.
        failed: folders of the failed jobs.
        news: lines to print since the last update: the first estimate of how long a run takes, unknown measures.
    """

    def __init__(self, planned: Planned, processes: int, shorter: str = "") -> None:
        self.rows = rows_of(planned)
        self.processes = processes
        self.shorter = shorter
        by_folder = {job.folder: job for row in self.rows for job in row.jobs}
        self.jobs = list(by_folder.values())
        self.busy: Sequence[Job] = ()
        self.finished = {job.folder: None for job in self.jobs if job.finished}
        self.failed: set[Path] = set()
        self.news: list[str] = []
        self._foretold = False  # whether a job has said how long a run takes
        self._looked_at = set[str]()  # the experiments whose first metrics have been looked at
        # The rounds that a job has done, and when that number was first seen.
        self._rounds = {job.folder: (job.rounds_done, time.monotonic()) for job in self.jobs if not job.finished}
        self._results: dict[tuple[str, Path], float] = {}
        self._left: tuple[float | None, float] = None, time.monotonic()  # the estimate, and when it was made
        self._paces: dict[Path, float] = {}  # seconds per round
        todo = {job.folder.parent for job in self.jobs if job.folder not in self.finished}
        self._note_paces([job for job in self.jobs if job.folder.parent in todo])

    def update(self, busy: Sequence[Job], failed: Sequence[Job]) -> tuple[list[Job], list[Job]]:
        """Read the progress of the jobs.

        Args:
            busy: the jobs under way.
            failed: all jobs that have failed.

        Returns:
            The jobs that have finished, and those that have failed, since the last call.
        """
        now = time.monotonic()
        new = [job for job in self.jobs if job.folder not in self.finished and job.finished]
        lost = [job for job in failed if job.folder not in self.failed]
        self.finished |= {job.folder: None for job in new}
        self.failed |= {job.folder for job in lost}
        self.busy = [job for job in busy if job.folder not in self.finished]
        for job in self.busy:
            done = job.rounds_done
            if done != self._rounds[job.folder][0]:
                self._rounds[job.folder] = done, now
        self._note_paces([*new, *self.busy])
        self._left = self._estimate(now), now
        self.news = [*self._first_estimate([*new, *self.busy]), *self._first_look()]
        return new, lost

    def _note_paces(self, jobs: Iterable[Job]) -> None:
        """Keep the paces of those jobs that have one."""
        for job in jobs:
            seconds = pace(job)
            if seconds:
                self._paces[job.folder] = seconds

    def _first_estimate(self, jobs: Sequence[Job]) -> list[str]:
        """Return the line in which the first of all jobs to know foretells its time; empty before, and afterwards."""
        if self._foretold:
            return []
        estimates = (job.estimate for job in jobs)
        line = next(filter(None, estimates), None)
        if line is None:
            return []
        self._foretold = True
        if self.shorter and ADVICE in line:
            line = f"{line} or {self.shorter}"
        if len(self.jobs) > 1:
            line = f"the first of {len(self.jobs):,} runs: {line}"
        return [line]

    def _first_look(self) -> list[str]:
        """Look at the first metrics of each experiment's runs: choose a measure, or say which measures are unknown."""
        lines = list[str]()
        by_id = {row.experiment.id: row.experiment for row in self.rows}
        for experiment in by_id.values():
            own_rows = [row for row in self.rows if row.experiment.id == experiment.id]
            jobs = [job for row in own_rows for job in row.jobs]
            if experiment.id in self._looked_at or not any(self._has_validated(job) for job in jobs):
                continue
            self._looked_at.add(experiment.id)
            lines += [f"{line}; {KEPT}" for line in unknown_measures(experiment, jobs)]
            chosen = with_measure(experiment, jobs)
            self.rows = [replace(row, experiment=chosen) if row.experiment is experiment else row for row in self.rows]
        return lines

    def _has_validated(self, job: Job) -> bool:
        """Tell whether a job has done the first round after which it logs all of its metrics."""
        every = job.config.get("trainer", {}).get("check_val_every_n_epoch") or 1
        return self.rounds(job) >= min(every, job.rounds)

    def rounds(self, job: Job) -> int:
        """Number of rounds that a job has done."""
        return job.rounds if job.folder in self.finished else min(self._rounds[job.folder][0], job.rounds)

    def value(self, row: Row, job: Job) -> float:
        """The row's measure of a finished job, or the newest value of a job under way; nan if there is none."""
        if job.folder not in self.finished:
            metric, factor = metric_and_factor(row.measure)
            return factor * newest_in(job.run.folder, metric)
        # A finished job is read once. By experiment, because experiments that share the job have measures of their own.
        key = row.experiment.id, job.folder
        if key not in self._results:
            with suppress(*UNREADABLE):  # the tables, made at the end, report the damage
                last = max(row.experiment.read_at(job.rounds).values())
                self._results[key] = measure(row.experiment, job.run, row.measure, last)
        return self._results.get(key, math.nan)

    def mean(self, row: Row, jobs: Sequence[Job]) -> float:
        """Mean of the values of some of the row's jobs, those without a value left out; nan if none has one."""
        return interval([self.value(row, job) for job in jobs])[0]

    def done(self) -> float:
        """Number of finished jobs, plus the finished shares of the others."""
        return sum(self.rounds(job) / job.rounds for job in self.jobs)

    def left(self) -> float | None:
        """Estimate the seconds until the last job ends; None before the first round."""
        seconds, made = self._left
        return None if seconds is None else max(seconds - (time.monotonic() - made), 0.0)

    def _estimate(self, now: float) -> float | None:
        """Deal the remaining jobs to the processes, at the pace of jobs with the same settings, or else of all jobs."""
        if not self._paces:
            return None
        under_way = {job.folder for job in self.busy}
        begun = self.finished.keys() | self.failed | under_way
        waiting = [job for job in self.jobs if job.folder not in begun]
        by_settings: dict[Path, list[float]] = {}  # jobs with the same settings lie in one folder
        for folder, seconds in self._paces.items():
            by_settings.setdefault(folder.parent, []).append(seconds)
        usual = fmean(self._paces.values())
        left = []
        for job in [*self.busy, *waiting]:
            round_takes = fmean(by_settings.get(job.folder.parent, [usual]))
            since = now - self._rounds[job.folder][1] if job.folder in under_way else 0.0
            left.append(time_left(round_takes, self.rounds(job), job.rounds, since))
        return last_end(left, self.processes)


def last_end(seconds: Iterable[float], processes: int) -> float:
    """Deal jobs to processes, each job to the process that is free first, and return when the last job ends.

    >>> last_end([3.0, 1.0, 1.0, 4.0], processes=2)
    6.0

    Args:
        seconds: the seconds that each job takes, in the order of the jobs.
        processes: number of jobs at a time.
    """
    ends = [0.0] * processes
    for job_takes in seconds:
        heapq.heapreplace(ends, ends[0] + job_takes)
    return max(ends)


def pace(job: Job) -> float | None:
    """Return a job's seconds per round (of a finished job, including its start); None before the first round."""
    try:
        seconds = job.run.timings["seconds"]
        if job.finished:
            return job.seconds / job.rounds
    except UNREADABLE:
        return None
    return float(seconds.mean()) if len(seconds) else None
