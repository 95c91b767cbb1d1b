"""CohortTraining: the part of the orchestrator that trains the clients of a round."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from typing_extensions import override

from fl_lightning.engine.availability import Turnout
from fl_lightning.engine.batches import TrainingBatch, batch_sizes
from fl_lightning.engine.buffers import bad_buffers
from fl_lightning.engine.callback import WEIGHT_HOOKS, FederatedCallback, Monitor, federated, streams
from fl_lightning.engine.checks import check_optimizers, check_trainable
from fl_lightning.engine.client_optimizers import RoundRates, make_optimizers
from fl_lightning.engine.cohort import ClientResult, Cohort
from fl_lightning.engine.declared import declares
from fl_lightning.engine.devices import busy, finish_work
from fl_lightning.engine.failures import described, ending
from fl_lightning.engine.gathering import gather_clients
from fl_lightning.engine.host import ClientHost
from fl_lightning.engine.local_run import LocalRun
from fl_lightning.engine.local_work import Work
from fl_lightning.engine.logged import examples_in
from fl_lightning.engine.module_state import ModuleState
from fl_lightning.engine.receiver import Receiver
from fl_lightning.engine.resident import ResidentData
from fl_lightning.engine.seeding import derive, isolated, seed_globals
from fl_lightning.engine.streaming import stream_weights
from fl_lightning.engine.updates import Summed, Updates
from fl_lightning.errors import ConfigurationError, is_exhaustion, values_of

STREAM = 256 << 20  # bytes of updates in memory above which a device sums them as they come, where it may


class CohortTraining(ClientHost):
    """Trains the clients of a round one after another, each from the whole global model, and keeps their updates."""

    local_lr_scheduler: LRSchedulerCallable | None
    on_bad_update: Literal["skip", "raise"]
    max_update_norm: float | None
    group_size: int = 1  # number of clients that train at once
    _state: ModuleState
    _anchor: Tensor  # (P,) the global model that the round's clients start from
    memory_limit: int  # bytes above which the updates of a round are in a file
    _folder: Path  # of the run
    streams: bool = False  # whether updates are summed as they come
    _sums: bool  # whether no rule looks at single updates for its weights
    _receiver: Receiver | None = None  # of this device's clients' updates
    _summed: Summed | None = None  # the sum of the updates that have come in a round that streams
    _results: list[ClientResult]  # of this device's clients, if their updates are not yet summed
    _taken: list[ClientResult]  # of all devices' clients whose updates are summed
    _trained: int  # number of this device's clients that have trained in the round
    _resident: ResidentData | None = None  # None where batches are gathered in the host's memory
    _unread: dict[int, tuple[Tensor, Tensor, Tensor]]  # of clients: signs of a bad update and of bad buffers, the loss
    _failures: list[tuple[str, Exception | None]]
    _turnout: Turnout  # what becomes of the clients that are selected for the round
    _told: set[str]  # names of attributes that a warning has named
    _quarantined: list[int]  # how many clients were left out, round by round of this fit

    @property
    def callbacks(self) -> list[FederatedCallback]:
        """The run's federated callbacks, rules and monitors, in the order given."""
        return federated(self.trainer)

    def hooks(self, name: str) -> Iterator[Callable[..., Any]]:
        """Yield the hook of each callback that defines it, in the order given; add up the time that monitors take."""
        empty = getattr(FederatedCallback, name)
        for callback in self.callbacks:
            hook = getattr(callback, name)
            if getattr(hook, "__func__", hook) is empty:
                continue
            if not isinstance(callback, Monitor):
                yield hook
                continue
            finish_work(self.device)  # else the monitor would seem to take what it waits for
            began = time.perf_counter()
            yield hook
            finish_work(self.device)
            self.seconds_looking += time.perf_counter() - began

    def make_rates(self) -> None:
        """Make the clients' optimizers once, for the schedule of their rates and for LearningRateMonitor to show."""
        first = int(self.data.sizes.argmax())
        with isolated(self.device):
            seed_globals(derive(self.seed, "rates"), self.device)
            try:
                self._shown.begin(self._new_run(first, self.params))
                with values_of(f"{type(self.client).__name__}.configure_optimizers"):
                    made, _ = make_optimizers(self.client)
            finally:
                self._shown.end()
                self._state.restore()
        check_optimizers(self.client, made)
        with values_of("model.local_lr_scheduler"):
            self._rates = RoundRates(made, self.local_lr_scheduler, self.settings.lr_decay)
        configs = [LRSchedulerConfig(scheduler, name="lr-client") for scheduler in self._rates.schedulers]
        self.trainer.lr_scheduler_configs.extend(configs)

    def _new_run(self, client: int, anchor: Tensor) -> LocalRun:
        work = self._work(client, self.round, lambda: self._first_batches(client))
        size = int(self.data.sizes[client])
        return LocalRun(self.client, self._flat, self._state, client, self.round, size, anchor, work)

    def _work(self, client: int, round: int, batches: Callable[[], Sized]) -> Work:
        generator = self.generator("stragglers", round, client) if self.settings.stragglers else None
        return self.settings.work(generator, batches)

    def num_steps(self, client: int, round: int) -> int:
        """Return the number of batches that a client trains on in a round, as the data module counts batches."""
        return self._counted(client, round).total_batches

    def _counted(self, client: int, round: int) -> Work:
        """A client's work in a round, its batches counted as the data module does."""
        batches = range(self.data.num_batches(int(self.data.sizes[client])))
        return self._work(client, round, lambda: batches)

    def _first_batches(self, client: int) -> Sized:
        """Return the batches of a client's first pass, apart from its training, such as for counting them."""
        with isolated(self.device):
            batches = self.data.client_batches(client, self.generator("batches", self.round, client, 0))
            return batches if isinstance(batches, Sized) else list(batches)

    def start_round(self) -> None:
        """Remember the global model, from which all clients of the round start."""
        self._anchor, self._state = self.params.clone(), ModuleState(self.client)
        check_trainable(self.client, self._flat.parameters, self._state.trainable, self.round)
        slots, rank, devices = self._slots(), self.trainer.global_rank, self.trainer.world_size
        if self._receiver is None or len(self._receiver) != slots:  # else reuse its memory: new memory is slow
            self._receiver = None  # lets go of its memory
            self._receiver = Receiver(self.params, rank, devices, slots, self.memory_limit, self._folder)
        self._receiver.clear()
        self._summed = Summed(self._receiver.columns) if self.streams else None
        self._turnout = self.data.turnout(self.round)
        self._results, self._taken, self._failures, self._unread, self._trained = [], [], [], {}, 0

    def choose_memory(self) -> None:
        """Decide for this fit whether updates are summed as they come."""
        rules = [callback for callback in self.callbacks if not isinstance(callback, Monitor)]
        self._sums, self.streams = all(streams(rule, WEIGHT_HOOKS) for rule in rules), False
        if self.group_size == 1 and self.max_update_norm is None and all(map(streams, self.callbacks)):
            self.streams = self._slots() * self.params.nbytes > self._room()

    def _room(self) -> int:
        """Bytes of updates that are held where they can be summed as they come."""
        return min(self.memory_limit, STREAM)

    def _slots(self) -> int:
        """The largest number of updates of this device's clients that are held at a time."""
        cohort, devices, group = self.data.cohort_size, self.trainer.world_size, self.group_size
        if devices > 1 and group > 1:
            return math.ceil(math.ceil(cohort / group) / devices) * group
        most = math.ceil(cohort / devices)
        return min(most, max(self.data.clients_per_batch, self._room() // self.params.nbytes)) if self.streams else most

    def sum_up(self, batches_done: int) -> None:
        """Where updates are summed as they come, sum those that have come, if another batch of clients has no room."""
        if self._summed is None or self._receiver is None:
            return
        each = max(1, len(self._receiver) // self.data.clients_per_batch)  # the same on all devices
        if batches_done % each == 0 and batches_done < self.trainer.num_training_batches:
            self._sum(self._summed)

    def _sum(self, summed: Summed) -> None:
        updates, results = self._gather()
        if results:
            cohort = Cohort.collect(self.round, self._anchor, updates, results)
            summed.take_in(updates, stream_weights(self.callbacks, cohort))
        self._taken += results
        self._results = []

    def _gather(self) -> tuple[Updates, list[ClientResult]]:
        """Gather the updates and results that have come on all devices since the last call."""
        assert self._receiver is not None
        self._read_signs()
        slots, self._unread = self._receiver.slots, {}
        results, order = gather_clients(self.trainer, slots, self._results, self._state.buffers, self.device)
        updates = self._receiver.hand_out(order)
        self._receiver.clear()
        return updates, results

    def train_client(self, client: int) -> None:
        """Train a client from the global model, keep its update, and put the global model back."""
        busy(self.trainer, f"client {client} of round {self.round}")
        seed_globals(derive(self.seed, "client", self.round, client), self.device)
        failed = True
        try:
            self._run = run = self._new_run(client, self._anchor)
            self._training.start(run, self._rates.factors(self.round) if self._rates else None)
            for start in self.hooks("on_client_start"):
                start(self, run)
            self._training.train(run, lambda epoch: self._batches(client, epoch))
            for end in self.hooks("on_client_end"):
                end(self, run)
            sign = self._receiver.put(client, run.params, self._anchor)  # type: ignore[union-attr]  # of this round
            buffers = self._state.read()
            self._results.append(run.result(buffers, self._training.loss_scale()))
            self._unread[client] = (sign, bad_buffers(self._state.buffers, buffers, sign), run.mean_loss(sign))
            failed = False
        except ConfigurationError:
            raise
        except Exception as error:
            if is_exhaustion(error):  # says nothing about the client: after a mend, the round is trained again
                raise
            self._leave_out(client, described(error, self.client), error)
        finally:
            self._training.end(self._run)
            self._run = None
            self._flat.clear_gradient()
            self.params.copy_(self._anchor)
            self._tell(client, self._state.restore(failed))
        self._trained += 1

    def _tell(self, client: int, changed: list[str]) -> None:
        """Say once that numbers which a client counts up do not reach the next client."""
        if changed and (new := sorted(set(changed) - self._told)):
            self._told.update(new)
            warnings.warn(
                f"client {client} changed {', '.join(new)}: every client starts from the global model's own value, so "
                "the change is dropped; register a buffer for what rounds should carry on",
                stacklevel=2,
            )

    def _batches(self, client: int, epoch: int) -> Iterator[tuple[Any, int]]:
        """Yield each batch of a local epoch, on the device, and its number of examples."""
        batches = self._resident_batches(client, epoch)
        if batches is None:
            batches = self.data.client_batches(client, self.generator("batches", self.round, client, epoch))
        sizes = iter(batch_sizes(batches))
        for batch in batches:
            if type(batch) is TrainingBatch:
                yield self.prepare_batch(batch), batch[0].size(0)
            else:
                yield self.prepare_batch(batch), next(sizes, None) or examples_in(batch)

    def _resident_batches(self, client: int, epoch: int) -> Iterable[Any] | None:
        """Gather the batches of a local epoch on the device, where they can be; None elsewhere."""
        if self._resident is None:
            return None
        found = self.data.indexed_batches(client, self.generator("batches", self.round, client, epoch))
        return self._resident.batches(*found) if found and found[1] else None

    def make_room(self) -> None:
        """Decide for this fit whether data in memory are copied to the device, where batches are then gathered."""
        hooks = ("on_before_batch_transfer", "transfer_batch_to_device")
        own = any(is_overridden(hook, each, DataHooks) for hook in hooks for each in (self.client, self.data))
        in_rows = declares(self.data, "in_rows", ("client_batches",))
        self._resident = ResidentData(self.device) if self.device.type != "cpu" and in_rows and not own else None

    def collect(self) -> Cohort | None:
        """Gather the updates and the results of all devices; leave out updates that are too large.

        Log what became of the round's clients.

        Returns:
            The round's cohort; None if no update has come.
        """
        updates: Updates
        if self._summed is not None:
            self._sum(self._summed)
            updates, results = self._summed, self._taken
        else:
            updates, results = self._gather()
        if self.max_update_norm is not None and results:
            fit = self._within_limit(updates.norms, [result.client for result in results], self.max_update_norm)
            updates, results = updates.only(fit), list(compress(results, fit))
        self._quarantined.append(len(self._turnout.arrived) - len(results))
        counts = self._turnout.counts if self.data.availability else {}
        for name, count in {**counts, "quarantined": self._quarantined[-1]}.items():
            self.log_round(f"clients/{name}", float(count))
        if not results:
            return None
        cohort = Cohort.collect(self.round, self._anchor, updates, results)
        if self._sums and updates.shares is None:  # gives the bits of a sum of updates as they come
            updates.shares = stream_weights(self.callbacks, cohort)
        return cohort

    def _read_signs(self) -> None:
        """Fill in the losses of clients that trained one by one, and leave out what is not finite; wait but once."""
        if not self._unread:
            return
        read = torch.stack([value for values in self._unread.values() for value in values]).view(-1, 3).tolist()
        found = dict(zip(self._unread, read, strict=True))
        results, self._results = self._results, []
        for result in results:
            sign, bad, loss = found.get(result.client, (0.0, 0.0, result.loss))
            if math.isnan(sign) and not self._receiver.is_finite(result.client):  # type: ignore[union-attr]
                self._leave_out(result.client, "its update is not finite", None)
            elif bad:
                self._leave_out(result.client, "a buffer of it is not finite", None)
            else:
                self._results.append(replace(result, loss=loss))

    def _within_limit(self, norms: Tensor, clients: list[int], multiple: float) -> list[bool]:
        """Tell for each update's norm (K,) whether it is within a multiple of the median norm; name those above."""
        median = float(norms.median())  # of an even number the lower one, so that one of two may be left out
        limit = multiple * median or math.inf  # no limit if most clients send zero
        fit = [norm <= limit for norm in norms.tolist()]
        for client, norm in compress(zip(clients, norms.tolist(), strict=True), [not each for each in fit]):
            reason = f"the norm of its update is {norm:.3g}, more than {multiple:g} times the median, {median:.3g}"
            self._leave_out(client, reason, None, speaks=self.trainer.is_global_zero)
        return fit

    def tell_quarantined(self) -> None:
        """Say in one line how many clients this fit has left out, if any."""
        if times := sum(self._quarantined):
            rounds = sum(count > 0 for count in self._quarantined)
            rank_zero_warn(
                f"clients left out in this fit: {times}, in {rounds} of {len(self._quarantined)} rounds "
                "(see clients/quarantined)"
            )

    def _leave_out(self, client: int, reason: str, error: Exception | None, speaks: bool = True) -> None:
        message = f"round {self.round}: client {client} is left out: {reason}"
        if self.on_bad_update == "raise":
            raise ending(message, error) from error
        if speaks:
            warnings.warn(message, stacklevel=2)
        self._failures.append((message, None if self._failures else error))  # one, since errors hold what they passed

    @override
    def drop_round(self) -> int | None:
        results: list[ClientResult] | None = self.__dict__.pop("_results", None)
        return None if results is None else self._trained
