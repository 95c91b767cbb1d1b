"""A lock on a folder: no two processes write into one run, or into the results of one sweep."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from filelock import SoftFileLock, Timeout

from fl_lightning.errors import ConfigurationError
from fl_lightning.inside import inside
from fl_lightning.runs.folder.slurm import own_start, start_is_over

LOCK = "lock"  # the file that is there while a process holds the folder
JOB = "lock.job"  # the file beside it with the job in SLURM of the process that holds the folder


class Holds(ExitStack):
    """Keeps the locks of a process until the process ends.

    A deep copy, such as one that the parser makes of an object with locks, is the same object: no lock is held twice.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


@contextmanager
def held(folder: Path, patience: float = 0) -> Iterator[None]:
    """Lock a folder inside a ``with`` block, so that no other process can lock the same folder.

    The file ``lock`` in the folder names the process and its host. The lock of a process that was killed does not
    count, if that process ran on this host, or in a job of SLURM that has ended.

    Args:
        folder: the folder, which is created if missing.
        patience: seconds to wait for another process that holds the folder.

    Raises:
        ConfigurationError: another process holds the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = inside(folder, LOCK)
    lock = SoftFileLock(file)
    try:
        _acquire(lock, file, patience)
    except Timeout:
        pid, host = (file.read_text() + "?\n?").split()[:2]
        raise ConfigurationError(
            f"process {pid} on {host} is at work in {folder}: wait until the process ends; if there is no such process "
            f"any more, delete {file}"
        ) from None
    of_job = inside(folder, JOB)
    if own_start():
        of_job.write_text(f"{own_start()}\n{file.read_text()}")
    try:
        yield
    finally:
        of_job.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: SoftFileLock, file: Path, patience: float) -> None:
    """Acquire a lock, also from a process whose job in SLURM has ended; raise Timeout if another process holds it."""
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        if not _take_away(file):
            raise
        lock.acquire(timeout=0)  # of several processes that take it away, one gets it


def _take_away(file: Path) -> bool:
    """Take away the lock of a process whose job in SLURM has ended, on whatever node; tell whether it is gone."""
    try:
        start, _, content = inside(file.parent, JOB).read_text().partition("\n")
        if file.read_text() != content or not start_is_over(start):
            return False
        aside = file.with_name(f"{LOCK}.{uuid4().hex}")
        file.rename(aside)
    except FileNotFoundError:  # no job held it, or another process has taken it away
        return False
    is_dead = aside.read_text() == content
    if not is_dead:  # another process had come in between the two lines above: give the lock back
        with suppress(FileExistsError):
            os.link(aside, file)
    aside.unlink()
    return is_dead
