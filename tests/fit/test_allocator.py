"""keep_freed_memory, by the page faults of a process that takes and frees tensors."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, resource, sys
import torch
from fl_lightning.fit.allocator import keep_freed_memory

torch.set_num_threads(1)
ctypes.CDLL(None).mallopt(-3, 1 << 20)  # glibc's usual threshold moves, so that some processes keep 8 MiB anyway
if sys.argv[1] == "kept":
    keep_freed_memory()
for repetition in range(60):
    if repetition == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2 << 20) + torch.ones(2 << 20)  # blocks of 8 MiB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str, environment: dict[str, str]) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True, env=environment
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_step_takes_the_memory_that_the_last_one_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    usual, kept = (faults(mode, dict(os.environ)) for mode in ("usual", "kept"))
    assert kept < usual / 10
    assert faults("kept", {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576"}) > usual / 2
