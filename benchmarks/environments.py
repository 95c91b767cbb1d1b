"""The environments of other frameworks: made on first use, apart from the project's, and the scripts that run there."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

FOLDER = Path("runs/benchmarks/environments")
SCRIPTS = Path(__file__).parent / "peers"
# The first requirement names the framework. fedjax uses functions that later versions of JAX have removed.
PINS = {
    "jax": ("jax==0.10.2",),
    "flower": ("flwr[simulation]==1.41.0",),
    "flower-datasets": ("flwr-datasets==0.6.1",),  # for its tests alone
    "pfl": ("pfl==0.6.0",),
    "fedjax": ("fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12", "numpy<2", "scipy<1.13"),
}
# One thread each, and nothing is sent anywhere.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "NPROC": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class UnavailableError(Exception):
    """A framework cannot be installed, or its script fails; the message is one line."""


def python(name: str, install: bool) -> str:
    """Return the Python of an environment, which is made first if ``install`` is set.

    Raises:
        UnavailableError: the environment is missing, and ``install`` is not set or fails.
    """
    folder, wanted = FOLDER / name, "\n".join(PINS[name])
    interpreter, made = folder / "bin" / "python", folder / "pins.txt"
    if not made.exists() or made.read_text() != wanted:
        if not install:
            raise UnavailableError("not installed: --peers does that")
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)], 120)
        _run([str(interpreter), "-m", "pip", "install", "--quiet", *PINS[name]], 900)
        _borrow_torch(interpreter)
        made.write_text(wanted)
    return str(interpreter)


def _borrow_torch(interpreter: Path) -> None:
    """Let an environment see the project's packages after its own: the same torch for all, and no second download."""
    there = _run([str(interpreter), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], 60).strip()
    Path(there, "project.pth").write_text(sysconfig.get_path("purelib") + "\n")


def versions() -> dict[str, str]:
    """Return the versions of the frameworks whose environments stand."""
    stand = [pins[0].split("==") for name, pins in PINS.items() if (FOLDER / name / "pins.txt").exists()]
    return {name.partition("[")[0]: number for name, number in stand}


def last_line(command: list[str], limit: float) -> dict[str, Any]:
    """Run a command and return its last line of output, which is JSON."""
    lines = _run(command, limit).splitlines()
    if not lines:
        raise UnavailableError("printed nothing")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def started(command: list[str], **pipes: Any) -> "subprocess.Popen[str]":
    """Start a command on one thread, in a session of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
    return subprocess.Popen(command, env=os.environ | SETTINGS, start_new_session=True, text=True, **pipes)


def _run(command: list[str], limit: float) -> str:
    with started(command) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except BaseException as error:  # Ctrl-C, too: what the command has started ends with it
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise UnavailableError(f"takes longer than {limit:.0f} s") from None
            raise
    if process.returncode:
        said = [line.strip() for line in err.splitlines() if "error" in line.lower()] or err.split("\n")[-2:-1]
        raise UnavailableError(f"does not run: {said[-1][:160] if said else f'status {process.returncode}'}")
    return out
