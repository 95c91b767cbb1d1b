"""GroupTraining: the part of the orchestrator that trains several clients at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning.engine.cohort_training import CohortTraining
from fl_lightning.engine.devices.strategy import busy
from fl_lightning.engine.federation.data import TRANSFER_HOOKS
from fl_lightning.engine.module.failures import RuleError, described
from fl_lightning.engine.module.state import Buffers, ModuleState
from fl_lightning.engine.rules.callback import overrides, serves_stacks
from fl_lightning.engine.rules.declared import declares
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.training.in_lockstep.batches import Part, Rows, alike, gathered, in_lockstep, repeated, stacked
from fl_lightning.engine.training.in_lockstep.stacked_run import RowRun, StackedRun
from fl_lightning.engine.training.in_lockstep.steps import Obstacle, StackedTraining
from fl_lightning.engine.updates.buffers import bad_buffers
from fl_lightning.errors import ConfigurationError, is_exhaustion
from fl_lightning.seeding import derive, random_states, seed_globals

SMALL = 1 << 16  # trainable parameters up to which clients at once save time, on all processors that were measured
LARGEST = 1 << 21  # entries of the largest stack that "auto" makes
Epochs = Callable[[int], Iterable[Any]]  # a client's batches in local epoch 0, 1, …


class GroupTraining(CohortTraining):
    """Trains groups of clients in lock-step where the module and the rules allow, else one client after another."""

    clients_at_once: int | Literal["auto"]
    compile_clients: bool
    _stacked: StackedTraining | None = None  # None where clients train one after another
    _in_rows: bool  # whether the batches of several clients may be gathered and go through the hooks together
    _way_before: tuple[Any, bool] | None = None  # of the checkpoint: clients_at_once, and whether clients were at once
    compared: int = 0  # the last round in which a client was also trained alone

    def choose_group_size(self) -> None:
        """Decide for this fit how many clients train at once; say why the number is 1 if it could be larger."""
        self.group_size, self._stacked, self.compared = 1, None, 0
        if self.clients_at_once == 1:
            return
        asked = max(1, LARGEST // len(self.params)) if self.clients_at_once == "auto" else self.clients_at_once
        wanted = min(asked, self.data.cohort_size)
        if reason := self._obstacle():
            self.say_one_by_one(reason)
        elif wanted > 1:
            self.group_size, self._stacked = wanted, StackedTraining(self._training, self.compile_clients)
            own = any(is_overridden(hook, self.client) for hook in TRANSFER_HOOKS)
            self._in_rows = self._batches_ready or (not own and declares(self.data, "by_example", TRANSFER_HOOKS))

    def _obstacle(self) -> str | None:
        """Say why clients cannot train at once, judged by the settings, the rules and the data; None if they can."""
        name, training, size = type(self.client).__name__, self._training, len(self.params)
        if self._way_before is not None and list(self._way_before) == [self.clients_at_once, False]:
            return "they did so before the run was stopped"
        if self.clients_at_once == "auto" and size > SMALL:
            return f"{name} has {size:,} trainable parameters, and more than {SMALL:,} save no time at once"
        if not training.automatic:
            return f"{name} optimizes manually"
        if training.hooks:
            return f"{name} defines {', '.join(training.hooks)}"
        if type(self.trainer.precision_plugin) is not Precision:
            return f"precision is {self.trainer.precision}"
        if self.settings.accumulate > 1:
            return "accumulate_grad_batches is above 1"
        if not declares(self.data, "in_rows", ("client_batches",)):
            return f"{type(self.data).__name__} defines client_batches"
        apart = [type(callback).__name__ for callback in self.callbacks if not serves_stacks(callback)]
        return f"{apart[0]} has hooks for single clients" if apart else None

    def say_one_by_one(self, reason: str) -> None:
        """Say in one line why clients train one after another."""
        say = rank_zero_info if self.clients_at_once == "auto" else rank_zero_warn
        say(f"clients_at_once: clients train one after another, since {reason}")

    def train_clients(self, clients: Sequence[int]) -> None:
        """Train clients of the round from the global model, keep their updates, and put the global model back."""
        error = self._train_group(clients) if self._stacked and len(clients) > 1 else None
        if self._stacked and len(clients) > 1 and error is None:
            return
        failures = len(self._failures)
        for client in clients:
            self.train_client(client)
        if error is not None and len(self._failures) == failures:
            warnings.warn(
                f"round {self.round}: {len(clients)} clients train one after another, since training them at once "
                f"fails: {described(error, self.client)}",
                stacklevel=2,
            )

    def _train_group(self, clients: Sequence[int]) -> Exception | None:
        """Train a group of clients at once; return an error in their steps, which training one by one will name."""
        busy(self.trainer, f"clients {', '.join(map(self.data.client_label, clients[:3]))}, … of round {self.round}")
        runs = [self._new_row(client, self._anchor) for client in clients]
        try:
            try:
                group = self._train_rows(runs, derive(self.seed, "group", self.round, clients[0]))
            except ConfigurationError:
                raise
            except Exception as error:
                if is_exhaustion(error):
                    raise
                return error
            self._keep(runs, group, self._end_clients(runs, group))
            self.tell_failures()
        finally:
            self._put_back(runs)
        return None

    def _train_rows(self, runs: Sequence[RowRun], seed: int, batches: Any = None, looking: bool = True) -> StackedRun:
        """Train clients as the rows of a stack.

        Args:
            runs: the clients' runs, those with most steps first.
            seed: the seed of the random numbers that local steps draw.
            batches: the batches of each step, whose random numbers are then the same for all clients; by default the
                clients' own batches, and numbers of their own.
            looking: whether monitors see the clients.

        Raises:
            Obstacle: the steps have effects beside their gradients, or draw other random numbers than torch's.
        """
        assert self._stacked is not None
        steps, name = [run.work.total_batches for run in runs], type(self.client).__name__
        weights = self._stacked.start(runs, self._rates.factors(self.round) if self._rates else None)
        self._start_clients(runs, looking)
        # Rules may add hooks of their own to the module when a client starts.
        state = ModuleState(self.client) if self._state.is_changed() else self._state
        self._run = group = StackedRun(runs, weights)  # type: ignore[assignment]  # logs, too
        seed_globals(seed, self.device)
        self._shown.asked.clear()
        others = random_states(self.device)[1]
        own = self._group_batches(runs, steps) if batches is None else batches
        self._stacked.train(group, steps, own, same_draws=batches is not None)
        if self._shown.asked:
            raise Obstacle(f"{name}.training_step asks for trainer.{min(self._shown.asked)}")
        if random_states(self.device)[1] != others:
            raise Obstacle(f"{name} draws random numbers of NumPy or Python, which would be one draw for all clients")
        if state.is_changed():
            raise Obstacle(f"{name}.training_step sets attributes of the module, or changes what they hold")
        return group

    def _put_back(self, runs: Sequence[RowRun]) -> None:
        for run in runs:
            run.optimizers = []
        self._training.end(None)
        self._run = None
        self._flat.clear_gradient()
        self.params.copy_(self._anchor)
        self._state.restore()

    def _start_clients(self, runs: Sequence[RowRun], looking: bool = True) -> None:
        if any(overrides(callback, "on_client_start") for callback in self.callbacks):
            for run in runs:
                self._run = run
                seed_globals(derive(self.seed, "client", self.round, run.client), self.device)
                for start in self.hooks("on_client_start", looking):
                    start(self, run)

    def _end_clients(self, runs: Sequence[RowRun], group: StackedRun) -> set[int]:
        """Call the hooks at each client's end; return the rows that fail."""
        bad = set[int]()
        for row, run in enumerate(runs):
            try:
                self._end_client(row, run, group)
            except (ConfigurationError, RuleError):
                raise
            except Exception as error:
                if is_exhaustion(error):
                    raise
                self._leave_out(run.client, described(error, self.client), error)
                bad.add(row)
        return bad

    def _end_client(self, row: int, run: RowRun, group: StackedRun, looking: bool = True) -> None:
        """Call the hooks at a client's end, when the module holds the client's model."""
        if not any(overrides(callback, "on_client_end") for callback in self.callbacks):
            return
        self.params.copy_(run.params)
        self._state.write(self._buffers_of(row, group))
        self._run = run
        try:
            for end in self.hooks("on_client_end", looking):
                end(self, run)
        finally:
            self._state.write(self._state.buffers)

    def _buffers_of(self, row: int, group: StackedRun) -> Buffers:
        prefix = "module."
        return self._state.of({name.removeprefix(prefix): values[row] for name, values in group.buffers.items()})

    def _new_row(self, client: int, anchor: Tensor) -> RowRun:
        work = self._counted(client, self.round)
        size = int(self.data.sizes[client])
        return RowRun(self.client, self._flat, self._state, client, self.round, size, anchor, work)

    def _group_batches(self, runs: Sequence[LocalRun], steps: Sequence[int]) -> Iterable[list[Part]]:
        """Make the batches of each step of a group.

        From data in memory, the batches of all clients are gathered at once, and go through the hooks together.

        Args:
            runs: the clients' runs.
            steps: number of local steps of each client, in descending order.
        """
        if self._in_rows and (epochs := self._indexed(runs)) is not None:
            return gathered(self.prepare_batch, in_lockstep(list(map(repeated, epochs, steps)), steps))
        epochs = [partial(self._batches, run.client) for run in runs]
        return map(stacked, in_lockstep(list(map(repeated, epochs, steps)), steps))

    def _indexed(self, runs: Sequence[LocalRun]) -> list[Epochs] | None:
        """Find the rows of each client's batches in datasets in memory, by local epoch; None for other data."""

        def batches(client: int, epoch: int) -> list[Rows] | None:
            found = self.data.indexed_batches(client, self.generator("batches", self.round, client, epoch))
            if found and found[1] and self._resident is not None:
                found = self._resident.place(*found) or found
            return None if found is None else [(found[0], rows) for rows in found[1]]

        firsts: list[list[Rows]] = []
        for run in runs:
            first = batches(run.client, 0)
            if not first or (firsts and not alike(first[0][0], firsts[0][0][0])):
                return None
            firsts.append(first)
        return [
            lambda epoch, client=run.client, first=first: first if epoch == 0 else batches(client, epoch)  # type: ignore[misc]
            for run, first in zip(runs, firsts, strict=True)
        ]

    def _keep(self, runs: Sequence[RowRun], group: StackedRun, bad: set[int]) -> None:
        """Keep the updates and results of a group, without the rows that have failed or are not finite."""
        self._trained += len(runs)
        clients = [run.client for run in runs]
        finite: list[bool] = self._receiver.put_group(clients, group.weights, self._anchor).tolist()  # type: ignore[union-attr]
        before = self._state.buffers
        for row, run in enumerate(runs):
            if row in bad:
                continue
            buffers = self._buffers_of(row, group) if group.buffers else before
            if not finite[row]:
                self._leave_out(run.client, "its update is not finite", None)
            elif buffers is not before and bool(bad_buffers(before, buffers, group.weights)):
                self._leave_out(run.client, "one of its buffers is not finite", None)
            else:
                self._results.append(run.result(buffers, None, run.loss))
