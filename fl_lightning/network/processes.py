"""Processes: FLARE's own, which live no longer than the process that has started them, and their logs."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

END = 15.0  # seconds within which FLARE's processes have ended


class Child:
    """Runs one of FLARE's programs, and ends the program and all that it has started.

    Args:
        module: the program, a module of FLARE.
        arguments: the program's arguments.
        log: the file that gets what the program prints.
    """

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "fl_lightning.network.keeper", sys.executable, "-u", "-m", module, *arguments]
        with log.open("ab") as output:
            self._keeper = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes to the process in the foreground alone
            )

    @property
    def alive(self) -> bool:
        """Whether the program runs."""
        return self._keeper.poll() is None

    def reaches(self, port: int) -> bool:
        """Tell whether a process of the program has a connection to a port of another one."""
        with suppress(psutil.Error):
            for process in psutil.Process(self._keeper.pid).children(recursive=True):
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_ESTABLISHED and connection.raddr.port == port:
                        return True
        return False

    def end(self) -> None:
        """End the program and all its descendants, and wait until they have ended."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(END)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Write what FLARE's library logs in this process to a file, and nothing of that to the terminal."""
    logger = logging.getLogger("nvflare")
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s - %(name)s - %(levelname)s - %(message)s"))
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)
        handler.close()
