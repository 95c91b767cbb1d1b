"""InLockstep: decides which clients train at once, and lets the others train one after another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from fl_lightning.engine.devices.strategy import finish_work
from fl_lightning.engine.module.failures import described
from fl_lightning.engine.round import Round
from fl_lightning.engine.rules.callback import attributes_kept
from fl_lightning.engine.training.in_lockstep.groups import Groups
from fl_lightning.engine.training.in_lockstep.obstacles import of_fit, reason_in
from fl_lightning.engine.training.in_lockstep.trial import Trial
from fl_lightning.engine.training.one_by_one import ClientTraining, OneByOne
from fl_lightning.errors import TrainingError
from fl_lightning.seeding import isolated

STACK_ENTRIES = 1 << 21  # entries of a large stack, of which "auto" makes one or several of the same size
SLOWER = 1.1  # how many times as long as alone a batch may take at once before "auto" gives up
COMPILING_S = 20.0  # seconds that compiling takes, at most, on the processors that were measured
SAVED_SHARE = 0.4  # of the time of the groups, which compiled steps save at least where they save any


def choose_training(
    alone: OneByOne, at_once: int | Literal["auto"], compiles: bool | Literal["auto"], before: Sequence[Any] | None
) -> ClientTraining:
    """Decide for a fit how many clients train at once; say why they train one by one if they could do otherwise.

    Args:
        alone: trains one client after another.
        at_once: the number of clients that is asked for.
        compiles: whether ``torch.compile`` compiles local steps; "auto" if that saves time.
        before: the number that was asked for, whether clients trained at once, whether steps were compiled, and whether
            batches were filled up, in the run that is resumed, if any.
    """
    size, cohort = len(alone.server.params), alone.data.module.cohort_size
    # Groups of one size, since compiled steps have forms for each.
    wanted = -(-cohort // -(-cohort * size // STACK_ENTRIES)) if at_once == "auto" else min(at_once, cohort)
    if at_once == 1:
        return alone

    def say(reason: str) -> None:
        tell = rank_zero_info if at_once == "auto" else rank_zero_warn
        tell(f"clients_at_once: clients train one after another, since {reason}")

    asked, was_at_once, was_compiled, was_padded = [*(before or [None, None]), None, None][:4]
    if asked == at_once and was_at_once is False:
        reason: str | None = "they did so before the run was stopped"
    elif at_once == "auto" and 2 * size > STACK_ENTRIES:
        reason = f"{type(alone.server.client).__name__} has {size:,} trainable parameters: two clients are too many"
    else:
        reason = reason_in(of_fit(alone))
    if reason:
        say(reason)
    if reason or wanted == 1:
        return alone
    groups = Groups(alone, compiles is True or (compiles == "auto" and bool(was_compiled)))
    groups.padded = was_padded
    return InLockstep(groups, wanted, say, at_once == "auto", compiles == "auto", bool(was_at_once))


class InLockstep:
    """Trains groups of clients at once, until a trial shows that they cannot; then one after another.

    A trial compares a client in a group with the same client alone, in rounds 1, 2, 4, 8, … and in the first of a fit.
    Where that is asked for, clients also train one after another if that takes less time, and steps are compiled if the
    rounds that are left will save more time than that takes; the rounds so far are what is known of the time.

    Args:
        groups: trains a group of clients at once.
        group_size: number of clients that train together.
        say: says in one line why clients train one after another.
        goes_by_time: whether clients train one after another if that takes less time.
        compiles_by_time: whether steps are compiled if that takes less time.
        has_trained: whether a run that goes on has trained groups.

    Attributes:
        at_once: whether clients train at once.
        compared: the last round with a trial; 0 before the first.
    """

    def __init__(
        self,
        groups: Groups,
        group_size: int,
        say: Callable[[str], None],
        goes_by_time: bool = False,
        compiles_by_time: bool = False,
        has_trained: bool = False,
    ) -> None:
        self.groups, self.group_size, self._say, self.at_once, self.compared = groups, group_size, say, True, 0
        self._goes_by_time, self._compiles_by_time, self._has_trained = goes_by_time, compiles_by_time, has_trained
        self._number, self._timed, self._seconds, self._batches = 0, 0, 0.0, 0
        self._alone_s = self._uncompiled_s = 0.0  # seconds of a batch of a client alone, and in a group

    @property
    def way(self) -> tuple[bool, bool, bool | None]:
        """Whether clients train at once, whether steps are compiled, and whether batches are filled up to one size.

        A resumed fit keeps all three; None says that the last one is not decided yet.
        """
        return self.at_once, self.at_once and self.groups.steps.is_compiled, self.groups.padded

    def train(self, round: Round, clients: Sequence[int]) -> None:
        """Train clients at once, or one after another where that fails; see :class:`ClientTraining`.

        Raises:
            TrainingError: a client in a group now differs from a client alone, and earlier rounds have trained groups.
        """
        if round.number != self._number:
            self._go_by_time(round)
            self._try(round)
            self._number, self._seconds, self._batches = round.number, 0.0, 0
        alone = self.groups.alone
        if not self.at_once or len(clients) < 2:
            alone.train(round, clients)
            return
        began = perf_counter()
        error = self.groups.train(round, clients)
        finish_work(alone.server.device)
        self._seconds += perf_counter() - began
        if self._goes_by_time or self._compiles_by_time:
            self._batches += sum(alone.data.counted(client, round.number).total_batches for client in clients)
        if error:
            failures = len(round.failures)
            alone.train(round, clients)
            if len(round.failures) == failures:
                warnings.warn(
                    f"round {round.number}: {len(clients)} clients train one after another, since training them at "
                    f"once fails: {described(error, alone.server.client)}",
                    stacklevel=2,
                )

    def _go_by_time(self, round: Round) -> None:
        """Choose the faster way, after the second round in the present way: the first one is slower than the others."""
        if not self.at_once or not self._batches:
            return
        self._timed += 1
        if self._timed < 2:
            return
        each, steps = self._seconds / self._batches, self.groups.steps
        left = (self.groups.alone.server.trainer.max_epochs or 0) - round.number + 1
        if self._goes_by_time and self._alone_s and each > SLOWER * self._alone_s:
            self.at_once = False
            self._say(f"a batch takes {each * 1e3:.3g} ms at once and {self._alone_s * 1e3:.3g} ms alone")
        elif not self._uncompiled_s:
            if self._compiles_by_time and not steps.is_compiled and left * self._seconds * SAVED_SHARE > COMPILING_S:
                self._uncompiled_s, self._timed = each, 0
                steps.compile()
                rank_zero_info(
                    f"compile_clients: local steps are compiled from round {round.number} on, since {left} rounds of "
                    f"{self._seconds:.2g} s are left"
                )
        elif steps.is_compiled and each > self._uncompiled_s:
            self._uncompile(
                f"a batch takes {each * 1e3:.3g} ms with them and {self._uncompiled_s * 1e3:.3g} ms without"
            )

    def _uncompile(self, reason: str) -> None:
        self.groups.steps.compile(False)
        rank_zero_info(f"compile_clients: local steps are no longer compiled, since {reason}")

    def _try(self, round: Round) -> None:
        """Let clients train one after another from the first round on if a trial shows an obstacle."""
        first, number, groups = self.compared == 0, round.number, self.groups
        newly_compiled = bool(self._uncompiled_s) and self._timed == 0 and groups.steps.is_compiled
        due = first or newly_compiled or (number & (number - 1) == 0 and self.compared < number)
        if not self.at_once or not due or len(round.turnout.arrived) < 2:
            return
        self.compared = number
        with isolated(groups.alone.server.device), attributes_kept(groups.alone.hooks.rules):
            reason = self._obstacle(round)
        if reason is not None and newly_compiled:
            self._uncompile(reason)
        elif reason is None:
            self._has_trained = True
            if first:
                rank_zero_info(f"clients_at_once: {self.group_size} clients train at once")
        elif self._has_trained:
            raise TrainingError(
                f"round {number}: clients can no longer train at once, since {reason}; the rounds before trained them "
                "at once: start again with model.clients_at_once: 1"
            )
        else:
            self.at_once = False
            self._say(reason)

    def _obstacle(self, round: Round) -> str | None:
        """Say why a client in a group differs from the same client alone; decide in a run's first trial if it pads."""
        groups, trial = self.groups, Trial(self.groups, round, self.group_size)
        self._alone_s = trial.seconds
        if reason := trial.hidden():
            return reason
        if groups.padded is None:
            sizes, compiled = groups.alone.server.data.sizes.tolist(), groups.steps.is_compiled
            groups.steps.compile(False)
            groups.padded = min(sizes) < max(sizes) and trial.obstacle(pads=True, later=False) is None
            groups.steps.compile(compiled)
        return trial.obstacle(groups.padded, self._has_trained)
