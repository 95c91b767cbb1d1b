"""Workers: train jobs in processes of this machine, several at a time; :mod:`.cluster` has those of a scheduler."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

import torch
from typing_extensions import override

from fl_lightning.reproduce.jobs import Job, train_job

GPUS = "CUDA_VISIBLE_DEVICES"  # environment variable that CUDA reads when a process first uses a GPU
POLL_S = 0.5
GRACE_S = 10  # seconds that a run has to stop, after it is told to


class Workers(Protocol):
    """Processes that train jobs."""

    @property
    def about(self) -> str:
        """A line for users on where the jobs are trained; "" for none."""
        ...

    @property
    def busy(self) -> Sequence[Job]:
        """The jobs under way, or in a queue."""
        ...

    def room(self, waiting: int) -> int:
        """Return how many of the jobs that wait may start now."""
        ...

    def start(self, jobs: Sequence[Job]) -> None:
        """Start jobs."""
        ...

    def collect(self) -> list[Job]:
        """Wait for a moment; return the jobs whose processes have ended since the last call, well or not."""
        ...

    def stop(self) -> None:
        """End all processes; a run keeps its rounds."""
        ...


def train(
    jobs: Sequence[Job],
    workers: Workers,
    report: Callable[[Sequence[Job], Sequence[Job]], None],
    until: float = math.inf,
) -> list[Job]:
    """Train all jobs that are not finished, as far as the time reaches.

    Args:
        jobs: jobs to train; jobs with the same folder are trained once.
        workers: the processes that train them, here or on a cluster.
        report: function that is called about twice a second with the jobs under way and the jobs that have failed.
        until: when the training stops, in seconds of the monotonic clock.

    Returns:
        The jobs that failed; the end of a job's log says why.
    """
    by_folder = {job.folder: job for job in jobs}
    waiting = [job for job in by_folder.values() if not job.finished]
    failed: list[Job] = []
    try:
        while (waiting or workers.busy) and time.monotonic() < until:
            room = workers.room(len(waiting))
            workers.start(waiting[:room])
            waiting = waiting[room:]
            failed += [job for job in workers.collect() if not job.finished]
            report(workers.busy, failed)
    finally:
        workers.stop()
    return failed


class Here(Workers):
    """Trains jobs in processes of this machine, each with its own GPUs.

    Args:
        processes: number of jobs at a time, at least 1.
    """

    def __init__(self, processes: int) -> None:
        # Imports modules once, and each run is still a fresh process.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["fl_lightning.fit.command"])
        self._gpus = share_gpus(visible_gpus(), processes)
        self._processes = processes
        self._free = list(range(processes))  # numbers of the processes that may start
        self._busy: dict[Any, tuple[int, Job]] = {}  # by process: its number and its job

    @property
    @override
    def about(self) -> str:
        if self._processes == 1 or not any(self._gpus):
            return ""
        return f"GPUs of the runs at a time: {'; '.join(self._gpus)}"

    @property
    @override
    def busy(self) -> Sequence[Job]:
        return [job for _, job in self._busy.values()]

    @override
    def room(self, waiting: int) -> int:
        return min(waiting, len(self._free))

    @override
    def start(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            number = self._free.pop(0)
            gpus = self._gpus[number] if job.leaves_devices_open else ""
            process = self._context.Process(target=_work, args=(job, job.log, gpus), name=job.name)
            process.start()
            self._busy[process] = number, job

    @override
    def collect(self) -> list[Job]:
        wait([process.sentinel for process in self._busy], POLL_S)
        ended = []
        for process in list(self._busy):
            if process.exitcode is not None:
                number, job = self._busy.pop(process)
                self._free.append(number)
                ended.append(job)
        return ended

    @override
    def stop(self) -> None:
        for process in self._busy:
            process.terminate()
        for process in self._busy:  # a client that takes longer is not waited for; the run's last round is saved
            process.join(GRACE_S)
            process.kill()


def visible_gpus() -> list[str]:
    """Return the names by which CUDA knows the GPUs that this process may use; it starts none of them."""
    count = torch.cuda.device_count()
    named = os.environ.get(GPUS)
    if named:
        return named.split(",")[:count]
    return [str(number) for number in range(count)]


def share_gpus(gpus: Sequence[str], processes: int) -> list[str]:
    """Give GPUs to processes, for the environment of each: its own ones, or one in turn if there are too few.

    >>> share_gpus(["0", "1", "2", "3"], 2)
    ['0,2', '1,3']
    >>> share_gpus(["0", "1"], 3)
    ['0', '1', '0']
    >>> share_gpus([], 2)
    ['', '']

    Args:
        gpus: the names of the GPUs.
        processes: number of processes, at least 1.

    Returns:
        The GPUs of each process, joined by commas; "" for a process that is left as it is.
    """
    if not gpus:
        return [""] * processes
    return [",".join(gpus[number % len(gpus) :: processes]) for number in range(processes)]


def _work(job: Job, log: Path, gpus: str) -> None:
    """Train one job in this process, on some GPUs if there are any."""
    if gpus:
        os.environ[GPUS] = gpus
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    sys.exit(train_job(job, log))


def _leave_with_parent() -> None:
    """End this process as soon as its parent process ends: two processes must not train the same run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
