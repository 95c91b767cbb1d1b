"""Processes: FLARE's own, which live no longer than the process that has started them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

END = 15.0  # seconds within which FLARE's processes have ended


class Child:
    """Runs one of FLARE's programs, and ends the program and all that it has started.

    Args:
        module: the program, a module of FLARE.
        arguments: the program's arguments.
        environment: variables to set.
        log: the file that gets what the program prints.
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "fl_lightning.network.keeper", sys.executable, "-u", "-m", module, *arguments]
        with log.open("ab") as output:
            self._keeper = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C comes to the process in the foreground alone
            )

    @property
    def alive(self) -> bool:
        """Whether the program runs."""
        return self._keeper.poll() is None

    def said(self) -> str:
        """Return what the program has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """End the program and all its descendants, and wait until they have ended."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(END)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
