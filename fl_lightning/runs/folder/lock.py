"""A lock on a folder: no two processes write into one run, or into the results of one sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from filelock import SoftFileLock, Timeout

from fl_lightning.errors import ConfigurationError
from fl_lightning.inside import inside

LOCK = "lock"  # the file that is there while a process holds the folder


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
    count, if that process ran on this host.

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
        lock.acquire(timeout=patience)
    except Timeout:
        pid, host = (file.read_text() + "?\n?").split()[:2]
        raise ConfigurationError(
            f"process {pid} on {host} is at work in {folder}: wait until the process ends; if there is no such process "
            f"any more, delete {file}"
        ) from None
    try:
        yield
    finally:
        lock.release()
