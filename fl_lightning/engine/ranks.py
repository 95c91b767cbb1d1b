"""RankWatch: says which rank the others wait for, and ends all ranks when one has ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from subprocess import Popen
from typing import Any

from fl_lightning.errors import RankError

POLL_S = 0.5
FIRST_S = 30  # seconds of waiting until the first word; the time to the next one doubles
WAITS = "waiting for others"
GO_ON = "the run can go on from its last.ckpt"


class RankWatch(threading.Thread):
    """Watches the processes of a run from a thread in each of them.

    - If a rank waits long for others, a line says for which, and what these ranks are at.
    - If a process that rank 0 has started ends with an error, or is killed, rank 0 says so and ends all ranks.
    - If rank 0 ends, the processes that rank 0 has started end.

    Args:
        rank: number of this process.
        world_size: number of processes.
        store: torch.distributed's store of keys and values that all ranks share.
        children: the processes that this process has started, ranks 1, 2, …
    """

    def __init__(self, rank: int, world_size: int, store: Any, children: Sequence[Popen[Any]]) -> None:
        super().__init__(daemon=True, name="rank watch")
        self._rank, self._world_size, self._store, self._children = rank, world_size, store, children
        self._parent = os.getppid()
        self._over = threading.Event()
        self._since: float | None = None  # when this rank began to wait
        self._next_word = FIRST_S
        self.busy("the start")

    def busy(self, what: str) -> None:
        """Let the other ranks know what this rank is at."""
        self._since = None
        self._set(what)

    def waits(self) -> None:
        """Let the other ranks know that this rank has nothing to do until they have come as far."""
        if self._since is None:
            self._set(WAITS)
            self._next_word, self._since = FIRST_S, time.monotonic()

    def _set(self, what: str) -> None:
        with suppress(RuntimeError):  # rank 0, which holds the store, may have ended
            self._store.set(f"at/{self._rank}", what)

    def end(self) -> None:
        """End the watch."""
        self._over.set()

    def run(self) -> None:
        """Look twice a second until the watch ends."""
        while not self._over.wait(POLL_S):
            self._look_for_ended_ranks()
            if self._since is not None and time.monotonic() - self._since > self._next_word:
                self._tell_who_is_late(time.monotonic() - self._since)
                self._next_word *= 2

    def _tell_who_is_late(self, seconds: float) -> None:
        at = self._all_at()
        if self._rank == min((rank for rank, what in at.items() if what == WAITS), default=-1):
            _say(f"rank {self._rank} has waited {seconds:.0f} s for {_others(at)}")

    def _look_for_ended_ranks(self) -> None:
        """End this process if its parent has ended, and all processes if a child has ended with an error."""
        if self._rank and os.getppid() != self._parent:
            if self._rank == 1:
                _say(f"fl-lightning: error: rank 0 has ended: {GO_ON}")
            os._exit(1)
        for rank, child in enumerate(self._children, 1):
            if child.poll():
                code = int(child.returncode)
                how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
                at = self._all_at().get(rank, "the start")
                _say(f"fl-lightning: error: rank {rank} ({at}) ended {how}: {GO_ON}")
                self._kill_children()
                os._exit(1)

    def explain(self, error: BaseException) -> None:
        """Give an error of an exchange between ranks a cause that names the rank; leave other errors alone."""
        modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
        if self._since is None or not any(name.startswith("torch.distributed") for name in modules):
            return
        for _ in range(6):  # a rank that has ended is noticed soon after
            time.sleep(POLL_S)
            self._look_for_ended_ranks()
        self._kill_children()
        error.__cause__ = RankError(
            f"rank {self._rank} has waited in vain for {_others(self._all_at())}: {GO_ON}; strategy.timeout sets how "
            "long ranks wait"
        )

    def _kill_children(self) -> None:
        for child in self._children:
            child.kill()

    def _all_at(self) -> dict[int, str]:
        """Ask the store where each rank is: on which client, or waiting; a rank that has said nothing is left out."""
        keys = {rank: f"at/{rank}" for rank in range(self._world_size)}
        try:
            return {rank: self._store.get(key).decode() for rank, key in keys.items() if self._store.check([key])}
        except RuntimeError:  # rank 0, which holds the store, has ended
            return {}


def _others(at: dict[int, str]) -> str:
    late = [f"rank {rank} ({what})" for rank, what in at.items() if what != WAITS]
    return " and ".join(late) or "the other ranks"


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
