"""InLockstep: decides which clients train at once, and lets the others train one after another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from fl_lightning.engine.module.failures import described
from fl_lightning.engine.round import Round
from fl_lightning.engine.training.in_lockstep.groups import Groups
from fl_lightning.engine.training.in_lockstep.obstacles import of_fit, reason_in
from fl_lightning.engine.training.in_lockstep.trial import Trial
from fl_lightning.engine.training.one_by_one import ClientTraining, OneByOne
from fl_lightning.errors import TrainingError
from fl_lightning.seeding import isolated

SMALL = 1 << 16  # trainable parameters up to which clients at once save time, on all processors that were measured
LARGEST = 1 << 21  # entries of the largest stack that "auto" makes


def choose_training(
    alone: OneByOne, at_once: int | Literal["auto"], compiled: bool, before: Sequence[Any] | None
) -> ClientTraining:
    """Decide for a fit how many clients train at once; say why they train one by one if they could do otherwise.

    Args:
        alone: trains one client after another.
        at_once: the number of clients that is asked for.
        compiled: whether ``torch.compile`` compiles the steps of whole groups.
        before: the number that was asked for, and whether clients trained at once, in the run that is resumed, if any.
    """
    size = len(alone.server.params)
    wanted = min(max(1, LARGEST // size) if at_once == "auto" else at_once, alone.data.module.cohort_size)
    if at_once == 1:
        return alone

    def say(reason: str) -> None:
        tell = rank_zero_info if at_once == "auto" else rank_zero_warn
        tell(f"clients_at_once: clients train one after another, since {reason}")

    if before is not None and list(before) == [at_once, False]:
        reason: str | None = "they did so before the run was stopped"
    elif at_once == "auto" and size > SMALL:
        name = type(alone.server.client).__name__
        reason = f"{name} has {size:,} trainable parameters, and more than {SMALL:,} save no time at once"
    else:
        reason = reason_in(of_fit(alone))
    if reason:
        say(reason)
    return alone if reason or wanted == 1 else InLockstep(Groups(alone, compiled), wanted, say)


class InLockstep:
    """Trains groups of clients at once, until a trial shows that they cannot; then one after another.

    A trial compares a client in a group with the same client alone, in rounds 1, 2, 4, 8, … and in the first of a fit.

    Args:
        groups: trains a group of clients at once.
        group_size: number of clients that train together.
        say: says in one line why clients train one after another.

    Attributes:
        at_once: whether clients train at once.
        compared: the last round with a trial; 0 before the first.
    """

    def __init__(self, groups: Groups, group_size: int, say: Callable[[str], None]) -> None:
        self.groups, self.group_size, self._say, self.at_once, self.compared = groups, group_size, say, True, 0

    def train(self, round: Round, clients: Sequence[int]) -> None:
        """Train clients at once, or one after another where that fails; see :class:`ClientTraining`.

        Raises:
            TrainingError: a client in a group now differs from a client alone, and earlier rounds have trained groups.
        """
        self._try(round)
        alone = self.groups.alone
        if not self.at_once or len(clients) < 2:
            alone.train(round, clients)
        elif error := self.groups.train(round, clients):
            failures = len(round.failures)
            alone.train(round, clients)
            if len(round.failures) == failures:
                warnings.warn(
                    f"round {round.number}: {len(clients)} clients train one after another, since training them at "
                    f"once fails: {described(error, alone.server.client)}",
                    stacklevel=2,
                )

    def _try(self, round: Round) -> None:
        """Let clients train one after another from the first round on if a trial shows an obstacle."""
        first, number, server = self.compared == 0, round.number, self.groups.alone.server
        due = first or (number & (number - 1) == 0 and self.compared < number)
        if not self.at_once or not due or len(round.turnout.arrived) < 2:
            return
        self.compared = number
        with isolated(server.device):
            reason = Trial(self.groups, round, self.group_size).obstacle()
        if reason is None:
            if first:
                rank_zero_info(f"clients_at_once: {self.group_size} clients train at once")
        elif server.rounds_done:
            raise TrainingError(
                f"round {number}: clients can no longer train at once, since {reason}; the rounds before trained them "
                "at once: start again with model.clients_at_once: 1"
            )
        else:
            self.at_once = False
            self._say(reason)
