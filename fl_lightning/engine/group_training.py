"""GroupTraining: the part of the orchestrator that trains several clients at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning.engine.buffers import bad_buffers
from fl_lightning.engine.callback import overrides, serves_stacks
from fl_lightning.engine.client_optimizers import make_optimizers
from fl_lightning.engine.cohort_training import CohortTraining
from fl_lightning.engine.data import TRANSFER_HOOKS
from fl_lightning.engine.declared import declares
from fl_lightning.engine.devices import busy
from fl_lightning.engine.failures import described
from fl_lightning.engine.group_batches import Part, Rows, alike, gathered, in_lockstep, repeated, stacked
from fl_lightning.engine.local_run import LocalRun
from fl_lightning.engine.module_state import Buffers, ModuleState
from fl_lightning.engine.seeding import derive, isolated, seed_globals
from fl_lightning.engine.stacked_optimizer import ELEMENTWISE
from fl_lightning.engine.stacked_run import RowRun, StackedRun
from fl_lightning.engine.stacked_training import StackedTraining
from fl_lightning.errors import ConfigurationError, is_exhaustion

SMALL = 1 << 16  # trainable parameters up to which clients at once save time, on all processors that were measured
LARGEST = 1 << 21  # entries of the largest stack that "auto" makes
Epochs = Callable[[int], Iterable[Any]]  # a client's batches in local epoch 0, 1, …
TOLERANCE = 1e-3  # largest relative distance of a stack's gradient from a client's own


class GroupTraining(CohortTraining):
    """Trains groups of clients in lock-step where the module and the rules allow, else one client after another."""

    clients_at_once: int | Literal["auto"]
    compile_clients: bool
    _stacked: StackedTraining | None = None  # None where clients train one after another
    _in_rows: bool  # whether the batches of several clients may be gathered and go through the hooks together

    def choose_group_size(self) -> None:
        """Decide for this fit how many clients train at once; warn why the number is 1 if the user asked for more."""
        self.group_size, self._stacked = 1, None
        if self.clients_at_once == 1:
            return
        asked, size = self.clients_at_once, len(self.params)
        if asked == "auto":
            asked = LARGEST // size if size <= SMALL else 1
        wanted = min(asked, self.data.cohort_size)
        if wanted == 1:
            return
        if reason := self._obstacle():
            if self.clients_at_once != "auto":
                rank_zero_warn(f"clients_at_once: clients train one after another, since {reason}")
            return
        self.group_size = wanted
        own = any(is_overridden(hook, self.client) for hook in TRANSFER_HOOKS)
        together = self._batches_ready or (not own and declares(self.data, "by_example", TRANSFER_HOOKS))
        self._in_rows = together and declares(self.data, "in_rows", ("client_batches",))

    def train_clients(self, clients: Sequence[int]) -> None:
        """Train clients of the round from the global model, keep their updates, and put the global model back."""
        error = self._train_group(self._stacked, clients) if self._stacked and len(clients) > 1 else None
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

    def _train_group(self, training: StackedTraining, clients: Sequence[int]) -> Exception | None:
        """Train a group of clients at once; return an error in their steps, which training one by one will name."""
        busy(self.trainer, f"clients {', '.join(map(self.data.client_label, clients[:3]))}, … of round {self.round}")
        runs = [self._new_row(client, self._anchor) for client in clients]
        steps = [run.work.total_batches for run in runs]
        failed = True
        try:
            factors = self._rates.factors(self.round) if self._rates else None
            weights = training.start(runs, factors)
            self._start_clients(runs)
            self._run = group = StackedRun(runs, weights)  # type: ignore[assignment]  # logs, too
            seed_globals(derive(self.seed, "group", self.round, clients[0]), self.device)
            training.train(group, steps, self._group_batches(runs, steps))
            failed = False
        except ConfigurationError:
            raise
        except Exception as error:
            if is_exhaustion(error):
                raise
            return error
        else:
            self._keep(runs, group, self._end_clients(runs, group))
        finally:
            for run in runs:
                run.optimizers = []
            self._training.end(None)
            self._run = None
            self._flat.clear_gradient()
            self.params.copy_(self._anchor)
            self._state.restore(failed)
        return None

    def _start_clients(self, runs: Sequence[RowRun]) -> None:
        if any(overrides(callback, "on_client_start") for callback in self.callbacks):
            for run in runs:
                self._run = run
                seed_globals(derive(self.seed, "client", self.round, run.client), self.device)
                for start in self.hooks("on_client_start"):
                    start(self, run)

    def _end_clients(self, runs: Sequence[RowRun], group: StackedRun) -> set[int]:
        """Call the hooks at each client's end, when the module holds the client's model; return the rows that fail."""
        bad = set[int]()
        if not any(overrides(callback, "on_client_end") for callback in self.callbacks):
            return bad
        for row, run in enumerate(runs):
            self.params.copy_(run.params)
            self._state.write(self._buffers_of(row, group))
            self._run = run
            try:
                for end in self.hooks("on_client_end"):
                    end(self, run)
            except ConfigurationError:
                raise
            except Exception as error:
                if is_exhaustion(error):
                    raise
                self._leave_out(run.client, described(error, self.client), error)
                bad.add(row)
        self._state.write(self._state.buffers)
        return bad

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

    # Whether clients can train at once

    def _obstacle(self) -> str | None:
        """Say why clients cannot train at once, judged by the module, the settings and a trial; None if they can."""
        name, training = type(self.client).__name__, self._training
        if not training.automatic:
            return f"{name} optimizes manually"
        if training.hooks:
            return f"{name} defines {', '.join(training.hooks)}"
        if type(self.trainer.precision_plugin) is not Precision:
            return f"precision is {self.trainer.precision}"
        if self.settings.accumulate > 1:
            return "accumulate_grad_batches is above 1"
        for callback in self.callbacks:
            if not serves_stacks(callback):
                return f"{type(callback).__name__} has hooks for single clients"
        return self._trial(name)

    def _trial(self, name: str) -> str | None:
        """Compare the gradient of the client with most data with the same gradient in a stack of two."""
        state, modes = ModuleState(self.client), [(part, part.training) for part in self.client.modules()]
        run = self._new_row(int(self.data.sizes.argmax()), self.params.clone())
        trial = StackedTraining(self._training, self.compile_clients)
        with isolated(self.device), torch.autocast(self.device.type, enabled=False):
            self.client.train()
            self._shown.begin(run)
            try:
                made, schedules = make_optimizers(self.client)
                if type(made[0]) not in ELEMENTWISE:
                    return f"{type(made[0]).__name__} is not one of {', '.join(kind.__name__ for kind in ELEMENTWISE)}"
                if schedules:
                    return f"{name} has a learning-rate schedule within a round"
                batch = next(self._batches(run.client, 0))
                self._shown.asked.clear()
                own = self._own_gradient(batch[0], 1)
                if self._shown.asked:
                    return f"{name}.training_step asks for trainer.{min(self._shown.asked)}"
                if own is None:
                    return f"a parameter of {name} has no gradient"
                again = self._own_gradient(batch[0], 2)
                self._run = group = StackedRun([run, run], run.anchor.expand(2, -1).clone())  # type: ignore[assignment]
                gradients = trial.trial(group, batch)
                if state.is_changed():
                    return f"{name}.training_step sets attributes of the module"
                if again is not None and torch.equal(own, again):  # else it draws random numbers
                    distance = (gradients - own).norm(dim=1).max() / own.norm().clamp(min=1e-30)
                    if not float(distance) < TOLERANCE:
                        return f"{name}.training_step gives other gradients for several clients at once"
            except ConfigurationError:
                raise
            except Exception as error:
                if is_exhaustion(error):
                    raise
                return f"{name}.training_step fails for several clients: {' '.join(str(error).split())[:200]}"
            finally:
                self._run = None
                self._training.end(None)
                state.restore(True)
                for part, mode in modes:
                    part.training = mode
        self._stacked = trial
        return None

    def _own_gradient(self, batch: Any, draw: int) -> Tensor | None:
        """Compute the gradient (P,) of a batch's loss at the global model; None if a parameter has none."""
        seed_globals(derive(self.seed, "trial", draw), self.device)
        outputs: Any = self.client.training_step(batch, *((0,) if self._takes_index else ()))
        parts = torch.autograd.grad(self._training.loss_of(outputs), self._flat.parameters, allow_unused=True)
        return None if any(part is None for part in parts) else self._flat.join(parts)
