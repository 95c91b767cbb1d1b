"""keep_freed_memory, by the page faults of a process that takes and frees tensors."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, os, resource
import torch
from fl_lightning.fit.allocator import keep_freed_memory

def faults():
    for repetition in range(60):
        if repetition == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2 << 20) + torch.ones(2 << 20)  # blocks of 8 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
ctypes.CDLL(None).mallopt(-3, 1 << 20)  # glibc's usual threshold moves, so that some processes keep 8 MiB anyway
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.mmap_threshold=1048576"  # the user's choice stays
keep_freed_memory()
print(faults())
del os.environ["GLIBC_TUNABLES"]
keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_step_takes_the_memory_that_the_last_one_freed() -> None:
    """50 steps take 24 MiB each anew, in pages of 4 KiB, unless the memory is kept."""
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    usual, kept = map(int, done.stdout.split())
    assert kept < usual / 10
