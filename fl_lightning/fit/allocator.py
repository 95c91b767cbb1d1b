"""keep_freed_memory: glibc keeps the memory that a training step frees, for the next step."""

from __future__ import annotations

import ctypes
import os
import sys

# Parameters of glibc's mallopt(3), and their largest values.
MMAP_THRESHOLD, LARGEST_BLOCK = -3, 32 << 20
TRIM_THRESHOLD, NEVER = -1, 2**31 - 1


def keep_freed_memory() -> None:
    """Make glibc keep the memory of tensors that this process has freed, in blocks of up to 32 MiB.

    By default, glibc returns large blocks to the system at once, and the system clears each page anew when the next
    step asks for it. No result changes; the process stays at the size of its peak. Does nothing on systems without
    glibc, or if the user has set ``GLIBC_TUNABLES``.
    """
    if not sys.platform.startswith("linux") or "GLIBC_TUNABLES" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST_BLOCK)
        mallopt(TRIM_THRESHOLD, NEVER)
