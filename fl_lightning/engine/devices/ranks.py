"""RankWatch: says which rank the others wait for, and ends all ranks when one has ended."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from subprocess import Popen
from typing import Any

import torch.distributed

from fl_lightning.engine.devices.forks import Fork
from fl_lightning.errors import ConfigurationError, RankError, frames

POLL_S = 0.5
FIRST_S = 30  # seconds of waiting until the first word; the time to the next one doubles
PATIENCE_S = 3  # seconds that rank 0 has to end all ranks of a run, before another rank tells its own error
START = "the start"  # where a rank is that has said nothing yet
WAITS = "waiting for others"
GO_ON = ": the run can go on from its last.ckpt"


class RankWatch(threading.Thread):
    """Watches the processes of a run from a thread in each of them.

    - If a rank waits long for others, a line says for which, and what these ranks are at.
    - If a process that rank 0 has started ends with an error, or is killed, rank 0 says so and ends all ranks.
    - If the process that has started this one ends, this one ends.

    Args:
        rank: number of this process.
        world_size: number of processes.
        children: the processes that this process has started, ranks 1, 2, …
        parent: number of the process of the run that has started this one, and may have ended by now; None if there is
            none, as for rank 0 of a run from the command line.

    Attributes:
        over: the event that ends the watch.
        store: torch.distributed's store of keys and values that all ranks share; None until the ranks have met.
        waited: seconds in which this rank has waited for others so far.
    """

    store: Any = None
    _silent = False  # whether this rank has an error, but leaves it to rank 0 to tell its own

    def __init__(self, rank: int, world_size: int, children: Sequence[Popen[Any] | Fork], parent: int | None) -> None:
        super().__init__(daemon=True, name="rank watch")
        self._rank = rank
        self._world_size = world_size
        self._children = children
        self._parent = parent
        self.over = threading.Event()
        self._since: float | None = None  # when this rank began to wait
        self._next_word: float = FIRST_S  # seconds of waiting until the next word
        self._hint = ""  # what to do if another rank has ended
        self.waited = 0.0

    def busy(self, what: str) -> None:
        """Let the other ranks know what this rank is at."""
        if self._since is not None:
            self.waited += time.monotonic() - self._since
        self._since = None
        self._hint = "" if what == START else GO_ON  # at the start, there is no checkpoint to go on from
        self._announce(what)

    def waits(self) -> None:
        """Let the other ranks know that this rank has nothing to do until they have come as far."""
        if self._since is None:
            self._announce(WAITS)
            self._next_word = FIRST_S
            self._since = time.monotonic()

    def _announce(self, what: str) -> None:
        with suppress(RuntimeError):  # rank 0, which holds the store, may have ended
            self.store.set(f"at/{self._rank}", what)

    def run(self) -> None:
        """Look twice a second until the watch ends."""
        while not self.over.wait(POLL_S):
            self._look_for_ended_ranks()
            if self._since is not None and time.monotonic() - self._since > self._next_word:
                self._tell_who_is_late(time.monotonic() - self._since)
                self._next_word *= 2

    def _tell_who_is_late(self, seconds: float) -> None:
        at = self._all_at()
        if self._rank == min((rank for rank, what in at.items() if what == WAITS), default=-1):
            _say(f"rank {self._rank} has waited {seconds:.0f} s for {self._others(at)}")

    def _look_for_ended_ranks(self) -> None:
        """End this process if its parent has ended, and all processes if a child has ended with an error."""
        if self._parent is not None and os.getppid() != self._parent:
            if self._rank == 1 and not self._silent:
                _say(f"fl-lightning: error: rank 0 has ended{self._hint}")
            os._exit(1)
        for rank, child in enumerate(self._children, self._rank + 1):
            if child.poll():
                code = int(child.returncode or 0)
                how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
                _say(f"fl-lightning: error: rank {rank} ({self._all_at()[rank]}) ended {how}{self._hint}")
                self._kill_children()
                os._exit(1)

    def explain(self, error: BaseException) -> None:
        """Give an error of an exchange between ranks a message that names the rank; leave other errors as they are.

        If all ranks raise an error, only rank 0 tells it, and then ends the processes that it has started.
        """
        if not isinstance(error, Exception):
            return  # stopped on purpose
        atexit.register(self._kill_children)
        modules = [str(frame.f_globals.get("__name__")) for frame in frames(error)]
        has_waited = self._since is not None and any(name.startswith("torch.distributed") for name in modules)
        is_lost = has_waited or of_exchange(error)
        self._silent = not is_lost
        patience = PATIENCE_S
        if self._rank == 0:
            patience = 5 * PATIENCE_S if is_lost else 0  # the rank that has ended may take long to end
        for _ in range(int(patience / POLL_S)):
            time.sleep(POLL_S)
            self._look_for_ended_ranks()
        if is_lost:
            message = f"rank {self._rank} has waited in vain for {self._others(self._all_at())}{self._hint}"
            error.args = (f"{message}; strategy.timeout sets how long ranks wait",)
            error.__cause__ = RankError(*error.args)

    def _kill_children(self) -> None:
        for child in self._children:
            child.kill()

    def _all_at(self) -> dict[int, str]:
        """Ask the store where each rank is: at the start, on which client, or waiting."""
        at = dict.fromkeys(range(self._world_size), START)
        if not self.store:
            return at
        with suppress(RuntimeError):  # rank 0, which holds the store, may have ended
            for rank in at:
                if self.store.check([f"at/{rank}"]):
                    at[rank] = self.store.get(f"at/{rank}").decode()
        return at

    def _others(self, at: dict[int, str]) -> str:
        late = [f"rank {rank} ({what})" for rank, what in at.items() if what != WAITS and rank != self._rank]
        return " and ".join(late) or "the other ranks"


@contextmanager
def meeting(rank: int, world_size: int) -> Iterator[None]:
    """Explain in one line why ranks do not meet inside a ``with`` block.

    Raises:
        ConfigurationError: rank 0 listens at a port that is in use.
        RankError: this rank did not find the others.
    """
    try:
        yield
    except RuntimeError as error:
        if not of_exchange(error):
            raise
        port = os.environ.get("MASTER_PORT")
        reason, _, _ = str(error).partition("\n")
        if "EADDRINUSE" in reason:
            raise ConfigurationError(
                f"port {port} of this machine, at which ranks are to meet, is in use: set MASTER_PORT to another port, "
                "or, if all ranks are on one machine, unset it"
            ) from None
        place = f"{os.environ.get('MASTER_ADDR')}:{port} (MASTER_ADDR and MASTER_PORT)"
        raise RankError(f"rank {rank} of {world_size} has not met the others at {place}: {reason}") from None


def of_exchange(error: Exception) -> bool:
    """Tell whether an error says that an exchange between ranks has failed."""
    return isinstance(error, torch.distributed.DistError) or "/gloo/" in str(error)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
