"""The tests in on_accelerator.py, in a process of their own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("on_accelerator.py")


@pytest.mark.slow
def test_on_a_pretended_accelerator() -> None:
    from torch.utils.cpp_extension import get_cxx_compiler, is_ninja_available  # on import, it warns of missing CUDA

    if not (shutil.which(get_cxx_compiler()) and is_ninja_available()):
        pytest.skip("the device is built by a C++ compiler and ninja")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(TESTS)]
    finished = subprocess.run(command, cwd=TESTS.parents[1], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout
