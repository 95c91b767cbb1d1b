"""ForkLauncher: starts the processes of other devices as copies of this one, which has imported and loaded all."""

from __future__ import annotations

import os
import signal
import sys
import threading

import psutil
import torch
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from typing_extensions import override


class Fork:
    """A forked process, with what a launcher and a watch ask of a ``subprocess.Popen``.

    Attributes:
        pid: number of the process.
        returncode: its exit status, or the negative number of the signal that ended it; None while it runs.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._asking = threading.Lock()  # the system answers only the first of two threads that ask at once

    def poll(self) -> int | None:
        """Return :attr:`returncode`, as it is now."""
        with self._asking:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)


class ForkLauncher(_SubprocessScriptLauncher):
    """Starts ranks 1, 2, … by fork, in place of starting the script once more for each of them.

    A rank goes on where rank 0 is, so it costs neither imports nor loading, and shares the memory of the data. Its
    command must end the process where rank 0 goes on (:func:`fl_lightning.cli.main` does). A process that cannot be
    copied starts the script once more, all the same.
    """

    @override
    def _call_children_scripts(self) -> None:
        if not can_fork():
            super()._call_children_scripts()
            return
        self._check_can_spawn_children()
        self.procs = []
        environment = self.cluster_environment
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
        os.environ["NODE_RANK"] = str(environment.node_rank())
        os.environ["WORLD_SIZE"] = str(self.num_processes * self.num_nodes)
        sys.stdout.flush()  # else each rank would print again what waits to be printed
        sys.stderr.flush()
        for rank in range(self.num_processes - 1, 0, -1):
            pid = os.fork()
            if pid == 0:
                os.environ["LOCAL_RANK"] = str(rank)
                self.procs = []
                return
            self.procs.insert(0, Fork(pid))  # type: ignore[arg-type]
        os.environ["LOCAL_RANK"] = "0"


def can_fork() -> bool:
    """Tell whether this process may go on in copies of itself: it has one thread alone, and no GPU is in use.

    The system counts threads of any library, which a copy would lack and might wait for; Python knows its own alone.
    """
    if sys.platform != "linux" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    return psutil.Process().num_threads() == 1
