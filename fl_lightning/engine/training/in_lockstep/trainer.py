"""InLockstep: decides which clients train at once, and lets the others train one after another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from time import perf_counter
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from fl_lightning.engine.devices.strategy import finish_work
from fl_lightning.engine.module.failures import error_text
from fl_lightning.engine.round import Round
from fl_lightning.engine.rules.callback import attributes_kept
from fl_lightning.engine.training.in_lockstep.groups import Groups
from fl_lightning.engine.training.in_lockstep.obstacles import of_fit, reason_in
from fl_lightning.engine.training.in_lockstep.trial import Trial
from fl_lightning.engine.training.one_by_one import ClientTraining, KeptWay, OneByOne
from fl_lightning.errors import TrainingError
from fl_lightning.seeding import isolated

STACK_ENTRIES = 1 << 21  # entries of a large stack, of which "auto" makes one or several of the same size
SLOWER = 1.1  # how many times as long as alone a batch may take at once before "auto" gives up


def is_trial_due(number: int, last: int) -> bool:
    """Tell whether a round begins with a trial: round 1, 2, 4, 8, …, or the first of a fit.

    Args:
        number: the round's number, 1, 2, …
        last: the last round of the fit that began with a trial; 0 for none.
    """
    is_power_of_two = number & (number - 1) == 0
    return last == 0 or (is_power_of_two and last < number)


def choose_training(
    alone: OneByOne, at_once: int | Literal["auto"], compiles: bool, before: Sequence[Any] | None
) -> ClientTraining:
    """Decide for a fit how many clients train at once; say why they train one by one if they could do otherwise.

    Args:
        alone: trains one client after another.
        at_once: the number of clients that is asked for.
        compiles: whether ``torch.compile`` compiles local steps.
        before: the number that was asked for in the run that is resumed, and the values of its :class:`KeptWay`; None
            for a new run.
    """
    if at_once == 1:
        return alone

    def say(reason: str) -> None:
        tell = rank_zero_info if at_once == "auto" else rank_zero_warn
        tell(f"clients_at_once: clients train one after another, since {reason}")

    resumed = KeptWay(at_once=False)
    gave_up = False
    if before is not None:
        asked_before, was_at_once, *_, padded = before  # between them, 0.3.0 says whether steps were compiled
        resumed = KeptWay(was_at_once, padded)
        gave_up = asked_before == at_once and not resumed.at_once
    reason = "they did so before the run was stopped" if gave_up else _why_one_by_one(alone, at_once)
    if reason is not None:
        say(reason)
        return alone
    group_size = _group_size(alone, at_once)
    if group_size == 1:
        return alone
    groups = Groups(alone, compiles)
    groups.padded = resumed.padded
    return InLockstep(groups, group_size, say, goes_by_time=at_once == "auto", has_trained=resumed.at_once)


def _group_size(alone: OneByOne, at_once: int | Literal["auto"]) -> int:
    """Return the number of clients in a group."""
    cohort = alone.data.datamodule.cohort_size
    if at_once != "auto":
        return min(at_once, cohort)
    # Groups of one size, since compiled steps have forms for each.
    group_count = ceil(cohort * len(alone.orchestrator.params) / STACK_ENTRIES)
    return ceil(cohort / group_count)


def _why_one_by_one(alone: OneByOne, at_once: int | Literal["auto"]) -> str | None:
    """Say what keeps the clients of a fit from training at once; None if nothing does."""
    size = len(alone.orchestrator.params)
    if at_once == "auto" and 2 * size > STACK_ENTRIES:
        return f"{type(alone.orchestrator.client).__name__} has {size:,} trainable parameters: two clients are too many"
    return reason_in(of_fit(alone))


@dataclass
class _RoundTime:
    """The seconds that the groups of one round have taken, and the batches of their clients."""

    number: int = 0
    seconds: float = 0.0
    batches: int = 0


class InLockstep:
    """Trains groups of clients at once, until a trial shows that they cannot; then one after another.

    A trial compares a client in a group with the same client alone, in rounds 1, 2, 4, 8, … and in the first of a fit.
    Where that is asked for, clients also train one after another if that has taken less time.

    Args:
        groups: trains a group of clients at once.
        group_size: number of clients that train together.
        say: says in one line why clients train one after another.
        goes_by_time: whether clients train one after another where that saves time.
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
        has_trained: bool = False,
    ) -> None:
        self.groups = groups
        self.group_size = group_size
        self.at_once = True
        self.compared = 0
        self._say = say
        self._goes_by_time = goes_by_time
        self._has_trained = has_trained
        self._time = _RoundTime()
        self._rounds_timed = 0
        self._alone_s = inf  # seconds of a batch of one client alone, as last measured

    @property
    def kept_way(self) -> KeptWay:
        """How clients train, for a resumed fit to go on in the same way."""
        return KeptWay(self.at_once, self.groups.padded)

    def train(self, round: Round, clients: Sequence[int]) -> None:
        """Train clients at once, or one after another where that fails; see :class:`ClientTraining`.

        Raises:
            TrainingError: a client in a group now differs from a client alone, and earlier rounds have trained groups.
        """
        if round.number != self._time.number:
            self._go_by_time()
            self._try(round)
            self._time = _RoundTime(round.number)
        alone = self.groups.alone
        if not self.at_once or len(clients) < 2:
            alone.train(round, clients)
            return
        began = perf_counter()
        error = self.groups.train(round, clients)
        finish_work(alone.orchestrator.device)
        self._time.seconds += perf_counter() - began
        self._time.batches += sum(alone.data.counted_work(client, round.number).total_batches for client in clients)
        if error:
            failures = len(round.failures)
            alone.train(round, clients)
            if len(round.failures) == failures:
                warnings.warn(
                    f"round {round.number}: {len(clients)} clients train one after another, since training them at "
                    f"once fails: {error_text(error, alone.orchestrator.client)}",
                    stacklevel=2,
                )

    def _go_by_time(self) -> None:
        """Give up groups that take longer, after their second round: the first one is slower than the others."""
        time = self._time
        if not self.at_once or not self._goes_by_time or not time.batches:
            return
        self._rounds_timed += 1
        batch_s = time.seconds / time.batches
        if self._rounds_timed > 1 and batch_s > SLOWER * self._alone_s:
            self._give_up(f"a batch takes {batch_s * 1e3:.3g} ms at once and {self._alone_s * 1e3:.3g} ms alone")

    def _give_up(self, reason: str) -> None:
        """Let clients train one after another for the rest of the fit."""
        self.at_once = False
        self._say(reason)

    def _try(self, round: Round) -> None:
        """Try groups out if that is due, and let clients train one after another if there is an obstacle."""
        is_due = is_trial_due(round.number, self.compared)
        if not self.at_once or not is_due or len(round.turnout.arrived) < 2:
            return
        is_first = self.compared == 0
        self.compared = round.number
        with isolated(self.groups.alone.orchestrator.device), attributes_kept(self.groups.alone.hooks.rules):
            reason = self._obstacle(round)
        if reason is None:
            if is_first:
                rank_zero_info(f"clients_at_once: {self.group_size} clients train at once")
        elif self._has_trained:
            raise TrainingError(
                f"round {round.number}: clients can no longer train at once, since {reason}; the rounds before trained "
                "them at once: start again with model.clients_at_once: 1"
            )
        else:
            self._give_up(reason)
        self._has_trained = True

    def _obstacle(self, round: Round) -> str | None:
        """Say why a client in a group differs from the same client alone; decide in a run's first trial if it pads."""
        groups = self.groups
        trial = Trial(groups, round, self.group_size)
        self._alone_s = trial.seconds
        reason = trial.hidden_state()
        if reason is not None:
            return reason
        if groups.padded is None:
            # What is compiled for batches that are not used in the end would be compiled in vain.
            is_compiled = groups.steps.is_compiled
            groups.steps.compile(False)
            sizes = groups.alone.orchestrator.data.sizes.tolist()
            groups.padded = min(sizes) < max(sizes) and trial.obstacle(pads=True, later=False) is None
            groups.steps.compile(is_compiled)
        return trial.obstacle(groups.padded, later=self._has_trained)
