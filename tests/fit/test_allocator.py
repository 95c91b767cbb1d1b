"""keep_freed_memory, by the page faults of a process that takes and frees tensors."""

import ctypes
import multiprocessing
import resource
import sys
from multiprocessing.connection import Connection

import pytest
import torch

from fl_lightning.fit.allocator import keep_freed_memory


def faults() -> int:
    for repetition in range(30):
        if repetition == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2 << 20) + torch.ones(2 << 20)  # blocks of 8 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def usual_and_kept(told: Connection) -> None:
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(-3, 1 << 20)  # glibc's usual threshold moves, so that some processes keep 8 MiB anyway
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1048576")  # the user's choice stays
        keep_freed_memory()
        usual = faults()
        patch.delenv("GLIBC_TUNABLES")
        keep_freed_memory()
        told.send((usual, faults()))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_step_takes_the_memory_that_the_last_one_freed() -> None:
    """20 steps take 24 MiB each anew, in pages of 4 KiB, unless the memory is kept. Forked, to save imports."""
    told, tells = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=usual_and_kept, args=(tells,))
    process.start()
    process.join()
    assert process.exitcode == 0
    usual, kept = told.recv()
    assert kept < usual / 10
