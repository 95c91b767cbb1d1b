"""keep_freed_memory, by the page faults of a process that takes and frees memory."""

import os
import subprocess
import sys

import pytest

# Ten steps take what they need; the next twenty take it again.
FAULTS = """
import resource
from fl_lightning.fit.allocator import keep_freed_memory

keep_freed_memory()
for step in range(30):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    first = b"1" * (8 << 20)
    second = b"2" * (8 << 20)
    del first, second
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**variables: str) -> int:
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"} | variables
    run = subprocess.run([sys.executable, "-c", FAULTS], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_step_takes_the_memory_that_the_last_one_freed() -> None:
    """Each in a new process: one that has memory left from other tests takes no page anew."""
    usual = faults(GLIBC_TUNABLES="glibc.malloc.mmap_threshold=1048576")  # the user's choice stays
    assert faults() < usual / 10
