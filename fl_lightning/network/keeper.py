"""Keeper: runs a command, and ends the command and all its descendants when the process that started it is gone."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import Event

import psutil

PR_SET_CHILD_SUBREAPER = 36  # of Linux' prctl: orphans among the descendants become children of this process
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
CHECK = 0.5  # seconds between two looks at the command


def keep(command: Sequence[str]) -> int:
    """Run a command until it ends, or standard input is closed, as when the starting process dies or wants an end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while process.poll() is None and not told.is_set():
        if select.select([sys.stdin], [], [], CHECK)[0]:
            break
    end_descendants()
    return process.wait()


def end_descendants() -> None:
    """End all descendants of this process."""
    descendants = psutil.Process().children(recursive=True)
    for descendant in descendants:
        _send(descendant, signal.SIGCONT)
        _send(descendant, signal.SIGTERM)
    psutil.wait_procs(descendants, GRACE)
    while descendants := psutil.Process().children(recursive=True):  # those who came meanwhile, too
        for descendant in descendants:
            _send(descendant, signal.SIGKILL)
        psutil.wait_procs(descendants, GRACE)
        _reap()


def _send(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _reap() -> None:
    """Take leave of orphans that have ended, which the system keeps in its table until then."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
