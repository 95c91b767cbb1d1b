"""Collection: the part of the orchestrator that collects the updates of a round's clients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fl_lightning.engine.federation.availability import Turnout
from fl_lightning.engine.hosting.host import ClientHost
from fl_lightning.engine.module.failures import ending
from fl_lightning.engine.module.state import ModuleState
from fl_lightning.engine.rules.callback import WEIGHT_HOOKS, FederatedCallback, Monitor, federated, streams
from fl_lightning.engine.updates.cohort import ClientResult, Cohort
from fl_lightning.engine.updates.gathering import gather_clients
from fl_lightning.engine.updates.receiver import Receiver
from fl_lightning.engine.updates.updates import Summed, Updates

STREAM = 256 << 20  # bytes of updates in memory above which a device sums them as they arrive, if the rules allow


class Collection(ClientHost):
    """Keeps the updates and results of a round's clients, or sums the updates as they arrive, and makes the cohort."""

    on_bad_update: Literal["skip", "raise"]
    max_update_norm: float | None
    group_size: int = 1  # number of clients that train at once
    _state: ModuleState
    _anchor: Tensor  # (P,) the global model that the round's clients start from
    memory_limit: int  # bytes above which the updates of a round are in a file
    _folder: Path  # the run folder
    streams: bool = False  # whether updates are summed as they arrive
    _sums: bool  # whether no rule reads single updates for its weights
    _receiver: Receiver | None = None  # receives the updates of this device's clients
    _summed: Summed | None = None  # the sum of the updates so far, in a round that sums them as they arrive
    _results: list[ClientResult]  # of this device's clients, if their updates are not yet summed
    _taken: list[ClientResult]  # of all devices' clients whose updates are summed
    _trained: int  # number of this device's clients that have trained in the round
    _unread: dict[int, tuple[Tensor, Tensor, Tensor]]  # by client: signs of a bad update and of bad buffers, the loss
    _failures: list[tuple[str, Exception | None]]
    _untold: list[str]  # messages about clients that are left out
    _turnout: Turnout  # what becomes of the clients that are selected for the round
    _quarantined: list[int]  # how many clients were left out, round by round of this fit

    @property
    def callbacks(self) -> list[FederatedCallback]:
        """The run's federated callbacks, rules and monitors, in the order given."""
        return federated(self.trainer)

    def choose_memory(self) -> None:
        """Decide for this fit whether updates are summed as they arrive."""
        rules = [callback for callback in self.callbacks if not isinstance(callback, Monitor)]
        self._sums, self.streams = all(streams(rule, WEIGHT_HOOKS) for rule in rules), False
        if self.group_size == 1 and self.max_update_norm is None and all(map(streams, self.callbacks)):
            self.streams = self._slots() * self.params.nbytes > self._room()

    def start_collection(self) -> None:
        """Make room for the updates of the round's clients."""
        slots, rank, devices = self._slots(), self.trainer.global_rank, self.trainer.world_size
        if self._receiver is None or len(self._receiver) != slots:  # else reuse its memory: new memory is slow
            self._receiver = None  # free the memory of the old receiver first
            self._receiver = Receiver(self.params, rank, devices, slots, self.memory_limit, self._folder)
        self._receiver.clear()
        self._summed = Summed(self._receiver.columns) if self.streams else None
        self._turnout = self.data.turnout(self.round)
        self._results, self._taken, self._failures, self._unread, self._trained = [], [], [], {}, 0
        self._untold = []

    def _room(self) -> int:
        """Return the bytes of updates that are held before they are summed, where they can be summed as they arrive."""
        return min(self.memory_limit, STREAM)

    def _slots(self) -> int:
        """Return the largest number of updates of this device's clients that are held at a time."""
        cohort, devices, group = self.data.cohort_size, self.trainer.world_size, self.group_size
        if devices > 1 and group > 1:
            return math.ceil(math.ceil(cohort / group) / devices) * group
        most = math.ceil(cohort / devices)
        return min(most, max(self.data.clients_per_batch, self._room() // self.params.nbytes)) if self.streams else most

    def sum_up(self, batches_done: int) -> None:
        """In a round that sums updates as they arrive, sum them if there is no room for another batch of clients."""
        if self._summed is None or self._receiver is None:
            return
        each = max(1, len(self._receiver) // self.data.clients_per_batch)  # the same on all devices
        if batches_done % each == 0 and batches_done < self.trainer.num_training_batches:
            self._sum(self._summed)

    def _sum(self, summed: Summed) -> None:
        updates, results = self._gather()
        if results:
            bare = [replace(result, buffers=[]) for result in results]  # buffers are averaged at the round's end
            cohort = Cohort.collect(self.round, self._anchor, updates, bare)
            summed.take_in(updates, stream_weights(self.callbacks, cohort))
        self._taken += results
        self._results = []

    def _gather(self) -> tuple[Updates, list[ClientResult]]:
        """Gather the updates and results that have arrived on all devices since the last call."""
        assert self._receiver is not None
        self._read_signs()
        slots, self._unread = self._receiver.slots, {}
        results, order = gather_clients(self.trainer, slots, self._results, self._state.buffers, self.device)
        updates = self._receiver.hand_out(order)
        self._receiver.clear()
        return updates, results

    def collect(self) -> Cohort | None:
        """Gather the updates and the results of all devices; leave out updates that are too large.

        Log what became of the round's clients.

        Returns:
            The round's cohort; None if no update has arrived.
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
        """Fill in the losses of clients that trained one by one, and leave out updates that are not finite.

        Reading all values at the end waits for the device only once.
        """
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
                self._leave_out(result.client, "one of its buffers is not finite", None)
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
        """Warn in one line how many clients this fit has left out, if any."""
        if times := sum(self._quarantined):
            rounds = sum(count > 0 for count in self._quarantined)
            rank_zero_warn(
                f"clients left out in this fit: {times}, in {rounds} of {len(self._quarantined)} rounds "
                "(see clients/quarantined)"
            )

    def tell_failures(self) -> None:
        """Warn of the clients that are left out, once it is clear that not every client of the round is."""
        while self._untold:
            warnings.warn(self._untold.pop(0), stacklevel=2)

    def _leave_out(self, client: int, reason: str, error: Exception | None, speaks: bool = True) -> None:
        message = f"round {self.round}: client {self.data.client_label(client)} is left out: {reason}"
        if self.on_bad_update == "raise":
            raise ending(message, error) from error
        if speaks:
            self._untold.append(message)
        self._failures.append((message, None if self._failures else error))  # one, since errors hold what they passed


def stream_weights(callbacks: Iterable[FederatedCallback], cohort: Cohort) -> Tensor:
    """Compute the weights (k,) of some clients' updates in the sum, up to a factor that the round's clients share."""
    weights = cohort.num_samples.double()
    for callback in callbacks:
        if not isinstance(callback, Monitor):
            weights = callback.stream_weights(cohort, weights)
    return weights
