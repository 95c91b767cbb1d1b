"""CohortTraining: the part of the orchestrator that trains the clients of a round."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.cli import LRSchedulerCallable
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from typing_extensions import override

from fl_lightning.engine.checks import check_optimizers, check_trainable
from fl_lightning.engine.collection import Collection
from fl_lightning.engine.devices.strategy import busy, finish_work
from fl_lightning.engine.federation.batches import ResidentData, TrainingBatch, batch_sizes
from fl_lightning.engine.module.failures import RuleError, described, guarded
from fl_lightning.engine.module.logged import examples_in
from fl_lightning.engine.module.state import ModuleState
from fl_lightning.engine.rules.callback import CLIENT_HOOKS, FederatedCallback, Monitor
from fl_lightning.engine.rules.declared import declares
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.work import Work
from fl_lightning.engine.same_start import check_start
from fl_lightning.engine.training.optimizers import RoundRates, make_optimizers
from fl_lightning.engine.updates.buffers import bad_buffers
from fl_lightning.engine.updates.cohort import ClientResult
from fl_lightning.errors import ConfigurationError, is_exhaustion, values_of
from fl_lightning.seeding import derive, isolated, seed_globals


class CohortTraining(Collection):
    """Trains the clients of a round one after another, each from the whole global model."""

    local_lr_scheduler: LRSchedulerCallable | None
    _resident: ResidentData | None = None  # None where batches are gathered in the host's memory
    _told: set[str]  # names of attributes that a warning has named

    def hooks(self, name: str, looking: bool = True) -> Iterator[Callable[..., Any]]:
        """Yield the hook of each callback that defines it, in the order given; add up the time that monitors take.

        Args:
            name: the hook's name.
            looking: whether to yield the monitors' hooks, too.
        """
        empty = getattr(FederatedCallback, name)
        for callback in self.callbacks:
            hook = getattr(callback, name)
            if getattr(hook, "__func__", hook) is empty or (isinstance(callback, Monitor) and not looking):
                continue
            hook = guarded(hook) if name in CLIENT_HOOKS else hook
            if not isinstance(callback, Monitor):
                yield hook
                continue
            finish_work(self.device)  # else the monitor's time would include its wait
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
        self._training.shown = made
        with values_of("model.local_lr_scheduler"):
            self._rates = RoundRates(made, self.local_lr_scheduler, self.settings.lr_decay)
        configs = [LRSchedulerConfig(scheduler, name="lr-client") for scheduler in self._rates.schedulers]
        self.trainer.lr_scheduler_configs.extend(configs)
        check_start(self, made)

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
        """Return a client's work in a round, with batches counted as the data module counts them."""
        batches = range(self.data.num_batches(int(self.data.sizes[client])))
        return self._work(client, round, lambda: batches)

    def _first_batches(self, client: int) -> Sized:
        """Return the batches of a client's first pass, apart from its training, such as for counting them."""
        with isolated(self.device):
            batches = self.data.client_batches(client, self.generator("batches", self.round, client, 0))
            return batches if isinstance(batches, Sized) else list(batches)

    def start_round(self) -> None:
        """Remember the global model, from which all clients of the round start."""
        self._anchor, self._state = self.params.clone(), ModuleState(self.client, self._state)
        check_trainable(self.client, self._flat.parameters, self._state.trainable, self.round)
        self.start_collection()

    def train_client(self, client: int) -> None:
        """Train a client from the global model, keep its update, and put the global model back."""
        busy(self.trainer, f"client {self.data.client_label(client)} of round {self.round}")
        try:
            with self.training_of(client, self._anchor) as run:
                self._training.train(run, lambda epoch: self._batches(client, epoch))
                for end in self.hooks("on_client_end"):
                    end(self, run)
                sign = self._receiver.put(client, run.params, self._anchor)  # type: ignore[union-attr]  # of this round
                buffers = self._state.read()
                self._results.append(run.result(buffers, self._training.loss_scale()))
                self._unread[client] = (sign, bad_buffers(self._state.buffers, buffers, sign), run.mean_loss(sign))
            self.tell_failures()
        except (ConfigurationError, RuleError):
            raise
        except Exception as error:
            if is_exhaustion(error):  # not the client's fault: the run stops, and can train the round again later
                raise
            self._leave_out(client, described(error, self.client), error)
        self._trained += 1

    @contextmanager
    def training_of(self, client: int, start: Tensor, looking: bool = True) -> Iterator[LocalRun]:
        """Let a client begin its training, to be continued inside a ``with`` block; then put the global model back.

        Args:
            client: the client's id.
            start: (P,) the parameters that the client starts from.
            looking: whether monitors see the client.
        """
        seed_globals(derive(self.seed, "client", self.round, client), self.device)
        try:
            self._run = run = self._new_run(client, self._anchor)
            if start is not self._anchor:
                self.params.copy_(start)
            self._training.start(run, self._rates.factors(self.round) if self._rates else None)
            for hook in self.hooks("on_client_start", looking):
                hook(self, run)
            yield run
        finally:
            self._training.end(self._run)
            self._run = None
            self._flat.clear_gradient()
            self.params.copy_(self._anchor)
            self._tell(client, self._state.restore())

    def _tell(self, client: int, changed: list[str]) -> None:
        """Say once that what a client counts or collects does not reach the next client."""
        if changed and (new := sorted(set(changed) - self._told)):
            self._told.update(new)
            warnings.warn(
                f"client {self.data.client_label(client)} changed {', '.join(new)}: every client starts from the "
                "global model's own value, so the change is dropped; register a buffer for what rounds should carry on",
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

    @override
    def drop_round(self) -> int | None:
        results: list[ClientResult] | None = self.__dict__.pop("_results", None)
        if results is not None:
            self.tell_failures()
        return None if results is None else self._trained
