"""What SLURM says of jobs: which of them have ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable

TIMEOUT_S = 60
NO_SUCH_JOB = "Invalid job id"  # what squeue says of a job that ended minutes ago


def own_start() -> str:
    """Name the start of the SLURM job that this process is part of, ``<job>.<restarts>``; "" outside of SLURM."""
    job = os.environ.get("SLURM_JOB_ID", "")
    return f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}" if job else ""


def start_is_over(start: str) -> bool:
    """Tell whether a start of a job, as :func:`own_start` names it, has ended: the job itself, or by a requeue."""
    job, _, restarts = start.partition(".")
    own_job, _, own_restarts = own_start().partition(".")
    if job == own_job:
        return int(restarts or 0) < int(own_restarts)
    return not alive([job])


def alive(jobs: Iterable[str]) -> set[str]:
    """Return those of some jobs that wait or run; all of them, if SLURM cannot be asked.

    Args:
        jobs: ids of jobs, or of tasks of an array as ``<job>_<task>``.
    """
    asked = set(jobs)
    command = ["squeue", "--noheader", "--array", "--format=%i %A", f"--jobs={','.join(sorted(asked))}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return asked
    if answer.returncode and NO_SUCH_JOB not in answer.stderr:
        return asked
    return asked & set(answer.stdout.split())
