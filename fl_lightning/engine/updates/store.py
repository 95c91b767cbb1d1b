"""The memory of a round's updates: a matrix with a row for each client, in memory or in a file that is mapped."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from mmap import PAGESIZE
from pathlib import Path
from tempfile import NamedTemporaryFile

import psutil
import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError

WILL_NEED = 3  # of madvise(2)
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def bytes_in(size: str) -> int:
    """Read a size, in bytes.

    >>> from fl_lightning.engine.updates.store import bytes_in
    >>> bytes_in("1.5GiB")
    1610612736

    Raises:
        ConfigurationError: the text is not a positive number and a unit.
    """
    found = re.fullmatch(r"(\d+\.?\d*) ?(KiB|MiB|GiB|TiB)", size)
    if not found:
        raise ConfigurationError(f"cohort_memory must be a size such as 4GiB, in {', '.join(UNITS)}, got {size!r}")
    return int(float(found[1]) * UNITS[found[2]])


def usual_limit(processes: int) -> int:
    """Return half of the machine's memory in bytes, divided by the run's number of processes on the machine."""
    return int(psutil.virtual_memory().total) // (2 * processes)


def new_rows(count: int, like: Tensor, limit: int, folder: Path) -> Tensor:
    """Make a matrix (count, P) for vectors like the given one (P,); its entries are undefined.

    On a CPU, a matrix of more than ``limit`` bytes is mapped from a file, which the system reads and writes as it needs
    the memory. The file has no name, so that it is gone with the process, however that ends.

    Args:
        count: number of rows.
        like: (P,) a vector, whose dtype and device the matrix gets.
        limit: the largest number of bytes in memory.
        folder: the folder of the file.

    Raises:
        ConfigurationError: the disk has no room.
    """
    size = count * like.nbytes
    if like.device.type != "cpu" or size <= limit:
        return like.new_empty(count, len(like))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix="updates-") as file:
            _reserve(file.fileno(), size)
            rows = torch.from_file(file.name, shared=True, size=count * len(like), dtype=like.dtype)
    except OSError as error:
        raise ConfigurationError(
            f"a round's updates ({count} clients × {len(like):,} parameters, {size / UNITS['GiB']:.1f} GiB) are above "
            f"the limit in memory of {limit / UNITS['GiB']:.1f} GiB and do not fit on disk in {folder}: "
            f"{error.strerror}; raise model.cohort_memory, or draw fewer clients"
        ) from error
    return rows.view(count, len(like))


def _reserve(file: int, size: int) -> None:
    """Give a file its size at once: writing to a mapped file on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


def will_need(part: Tensor) -> None:
    """Ask the system to read some columns of a mapped matrix now, and only these; do nothing for other matrices.

    Without this call, the system reads megabytes around each row's piece, and drops them before they are used.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform.startswith("linux") else None
    if madvise is None:
        return
    for row in part:
        start = row.data_ptr() // PAGESIZE * PAGESIZE
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(row.data_ptr() + row.nbytes - start), WILL_NEED)


def arranged(rows: Tensor, order: Sequence[int]) -> Tensor:
    """Move row ``order[k]`` of a matrix to row k, for each k, in place with the memory of one row; return the top.

    >>> import torch
    >>> from fl_lightning.engine.updates.store import arranged
    >>> arranged(torch.tensor([[0], [1], [2], [3]]), [3, 0, 1]).tolist()
    [[3], [0], [1]]
    """
    taken = set(order)
    sources = [*order, *(row for row in range(len(rows)) if row not in taken)]
    done = [source == row for row, source in enumerate(sources)]
    for start in range(len(order)):
        if done[start]:
            continue
        held, row = rows[start].clone(), start
        while sources[row] != start:
            rows[row] = rows[sources[row]]
            done[row], row = True, sources[row]
        rows[row], done[row] = held, True
    return rows[: len(order)]
