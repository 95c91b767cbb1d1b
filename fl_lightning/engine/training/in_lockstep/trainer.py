"""InLockstep: decides which clients train at once, and lets the others train one after another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
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
COMPILING_S = 20.0  # seconds that compiling takes, at most, on the processors that were measured
SAVED_SHARE = 0.4  # of the time of the groups, which compiled steps save at least where they save any


class Way(Enum):
    """How the clients of a round train."""

    ONE_BY_ONE = auto()
    AT_ONCE = auto()
    COMPILED = auto()  # at once, in compiled steps


def faster_way(way: Way, batch_s: Mapping[Way, float], left_s: float, open_ways: Collection[Way]) -> Way:
    """Choose the way of the next rounds by the time of those that are done.

    Args:
        way: the present way, with groups.
        batch_s: the seconds that a batch of one client takes, in the present way and in others that were measured.
        left_s: the seconds that the rounds which are left will take in the present way.
        open_ways: the ways that may be chosen because they save time. The way back from compiled steps, whose time was
            measured before, is always open.
    """
    alone_s = batch_s.get(Way.ONE_BY_ONE, inf)
    is_slow = Way.ONE_BY_ONE in open_ways and batch_s[way] > SLOWER * alone_s
    otherwise_s = alone_s if is_slow else batch_s[way]  # if steps are not compiled
    saved_s = left_s * (otherwise_s / batch_s[way] - (1 - SAVED_SHARE))
    if way is Way.AT_ONCE and Way.COMPILED in open_ways and saved_s > COMPILING_S:
        return Way.COMPILED
    if is_slow:
        return Way.ONE_BY_ONE
    if way is Way.COMPILED and batch_s[way] > batch_s.get(Way.AT_ONCE, inf):
        return Way.AT_ONCE
    return way


def is_trial_due(number: int, last: int, fallback: Way | None) -> bool:
    """Tell whether a round begins with a trial: round 1, 2, 4, 8, …, the first of a fit, or the first in a new way.

    Args:
        number: the round's number, 1, 2, …
        last: the last round of the fit that began with a trial; 0 for none.
        fallback: the way to go back to if the present way fails; None for a way that a trial has shown to work.
    """
    is_power_of_two = number & (number - 1) == 0
    return last == 0 or fallback is not None or (is_power_of_two and last < number)


def choose_training(
    alone: OneByOne, at_once: int | Literal["auto"], compiles: bool | Literal["auto"], before: Sequence[Any] | None
) -> ClientTraining:
    """Decide for a fit how many clients train at once; say why they train one by one if they could do otherwise.

    Args:
        alone: trains one client after another.
        at_once: the number of clients that is asked for.
        compiles: whether ``torch.compile`` compiles local steps; "auto" if that saves time.
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
        asked_before, *kept = before
        resumed = KeptWay(*kept)
        gave_up = asked_before == at_once and not resumed.at_once
    reason = "they did so before the run was stopped" if gave_up else _why_one_by_one(alone, at_once)
    if reason is not None:
        say(reason)
        return alone
    group_size = _group_size(alone, at_once)
    if group_size == 1:
        return alone
    groups = Groups(alone, resumed.compiled if compiles == "auto" else compiles)
    groups.padded = resumed.padded
    open_ways = set[Way]()
    if at_once == "auto":
        open_ways.add(Way.ONE_BY_ONE)
    if compiles == "auto":
        open_ways.add(Way.COMPILED)
    return InLockstep(groups, group_size, say, open_ways, has_trained=resumed.at_once)


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
    Where that is asked for, clients also train one after another if that takes less time, and steps are compiled if the
    rounds that are left will save more time than that takes; the rounds so far are what is known of the time.

    Args:
        groups: trains a group of clients at once.
        group_size: number of clients that train together.
        say: says in one line why clients train one after another.
        open_ways: the ways that are chosen where they save time.
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
        open_ways: Collection[Way] = (),
        has_trained: bool = False,
    ) -> None:
        self.groups = groups
        self.group_size = group_size
        self.at_once = True
        self.compared = 0
        self._say = say
        self._open_ways = set(open_ways)
        # The way to go back to if the next trial fails. None ends the run: rounds have trained in the present way.
        self._fallback = None if has_trained else Way.ONE_BY_ONE
        self._time = _RoundTime()
        self._rounds_timed = 0  # in the present way
        self._batch_s: dict[Way, float] = {}  # seconds of a batch of one client, as last measured

    @property
    def way(self) -> Way:
        """How clients train now. Steps that torch cannot compile are no longer compiled from then on."""
        if not self.at_once:
            return Way.ONE_BY_ONE
        return Way.COMPILED if self.groups.steps.is_compiled else Way.AT_ONCE

    @property
    def kept_way(self) -> KeptWay:
        """How clients train, for a resumed fit to go on in the same way."""
        return KeptWay(self.at_once, self.way is Way.COMPILED, self.groups.padded)

    def train(self, round: Round, clients: Sequence[int]) -> None:
        """Train clients at once, or one after another where that fails; see :class:`ClientTraining`.

        Raises:
            TrainingError: a client in a group now differs from a client alone, and earlier rounds have trained groups.
        """
        if round.number != self._time.number:
            self._go_by_time(round)
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

    def _go_by_time(self, round: Round) -> None:
        """Choose the faster way, after the second round in the present way: the first one is slower than the others."""
        time, way = self._time, self.way
        if way is Way.ONE_BY_ONE or not time.batches:
            return
        self._rounds_timed += 1
        if self._rounds_timed < 2:
            return
        batch_s = time.seconds / time.batches
        self._batch_s[way] = batch_s
        rounds_left = (self.groups.alone.orchestrator.trainer.max_epochs or 0) - round.number + 1
        chosen = faster_way(way, self._batch_s, rounds_left * time.seconds, self._open_ways)
        if chosen is way:
            return
        if chosen is Way.COMPILED:
            self._compile(f"from round {round.number} on, since {rounds_left} rounds of {time.seconds:.2g} s are left")
            return
        other_ms = self._batch_s[chosen] * 1e3
        if chosen is Way.ONE_BY_ONE:
            self._give_up(f"a batch takes {batch_s * 1e3:.3g} ms at once and {other_ms:.3g} ms alone")
        else:
            self._uncompile(f"a batch takes {batch_s * 1e3:.3g} ms with them and {other_ms:.3g} ms without")

    def _give_up(self, reason: str) -> None:
        """Let clients train one after another for the rest of the fit."""
        self.at_once = False
        self._say(reason)

    def _compile(self, since: str) -> None:
        """Let the steps be compiled, which is tried once in a fit."""
        self.groups.steps.compile()
        self._open_ways.discard(Way.COMPILED)
        self._fallback = Way.AT_ONCE
        self._rounds_timed = 0
        rank_zero_info(f"compile_clients: local steps are compiled {since}")

    def _uncompile(self, reason: str) -> None:
        self.groups.steps.compile(False)
        rank_zero_info(f"compile_clients: local steps are no longer compiled, since {reason}")

    def _try(self, round: Round) -> None:
        """Try the present way out if that is due, and go back to the way before if there is an obstacle."""
        is_due = is_trial_due(round.number, self.compared, self._fallback)
        if not self.at_once or not is_due or len(round.turnout.arrived) < 2:
            return
        is_first = self.compared == 0
        self.compared = round.number
        with isolated(self.groups.alone.orchestrator.device), attributes_kept(self.groups.alone.hooks.rules):
            reason = self._obstacle(round)
        if reason is None:
            if is_first:
                rank_zero_info(f"clients_at_once: {self.group_size} clients train at once")
        elif self._fallback is None:
            raise TrainingError(
                f"round {round.number}: clients can no longer train at once, since {reason}; the rounds before trained "
                "them at once: start again with model.clients_at_once: 1"
            )
        elif self._fallback is Way.ONE_BY_ONE:
            self._give_up(reason)
        else:
            self._uncompile(reason)
        self._fallback = None

    def _obstacle(self, round: Round) -> str | None:
        """Say why a client in a group differs from the same client alone; decide in a run's first trial if it pads."""
        groups = self.groups
        trial = Trial(groups, round, self.group_size)
        self._batch_s[Way.ONE_BY_ONE] = trial.seconds
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
        has_trained = self._fallback is not Way.ONE_BY_ONE
        return trial.obstacle(groups.padded, has_trained)
