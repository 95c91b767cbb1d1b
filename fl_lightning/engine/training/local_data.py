"""LocalData: what clients train on, and how much of it they do in a round."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from functools import cached_property, partial
from typing import Any

import torch
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.engine.federation.batches import ResidentData, Rows, TrainingBatch, batch_sizes, gather
from fl_lightning.engine.module.logged import examples_in
from fl_lightning.engine.rules.declared import declares
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.rules.work import LocalSettings, Work
from fl_lightning.seeding import isolated


class LocalData:
    """Brings the clients' batches to the device, and decides each client's work in a round.

    Data in memory are copied to an accelerator once, where batches are then gathered, unless the module or the data
    module has a say in the transfer of batches.

    Args:
        server: the orchestrator, whose data module has the batches.
        settings: the local work of every client.
    """

    def __init__(self, server: Server, settings: LocalSettings) -> None:
        self._server, self._settings, self.module = server, settings, server.data
        self._works: dict[int, Work] = {}  # of clients that do all of their work, by their number of batches

    @cached_property
    def _sizes(self) -> list[int]:
        return list(self.module.sizes.tolist())

    @cached_property
    def _resident(self) -> ResidentData | None:
        hooks = ("on_before_batch_transfer", "transfer_batch_to_device")
        own = any(is_overridden(hook, each, DataHooks) for hook in hooks for each in (self._server.client, self.module))
        in_rows = declares(self.module, "in_rows", ("client_batches",))
        on_device = self._server.device.type != "cpu" and in_rows and not own
        return ResidentData(self._server.device) if on_device else None

    def work(self, client: int, round: int) -> Work:
        """Decide a client's work in a round; its batches are asked for when they are to be counted."""
        return self._settings.work(self._stragglers(client, round), lambda: self._first_batches(client, round))

    def counted(self, client: int, round: int) -> Work:
        """Decide a client's work in a round, with batches counted as the data module counts them."""
        count = self.module.num_batches(self._sizes[client])
        if self._settings.stragglers:
            return self._settings.work(self._stragglers(client, round), partial(range, count))
        if count not in self._works:
            self._works[count] = self._settings.work(None, partial(range, count))
        return self._works[count]

    def _stragglers(self, client: int, round: int) -> Any:
        return self._server.generator("stragglers", round, client) if self._settings.stragglers else None

    def _first_batches(self, client: int, round: int) -> Sized:
        """Return the batches of a client's first pass, apart from its training, such as for counting them."""
        with isolated(self._server.device):
            batches = self.module.client_batches(client, self._order(client, round, 0))
            return batches if isinstance(batches, Sized) else list(batches)

    def _order(self, client: int, round: int, epoch: int, purpose: str = "batches") -> Any:
        return self._server.generator(purpose, round, client, epoch)

    def batches(self, client: int, round: int, epoch: int, purpose: str = "batches") -> Iterator[tuple[Any, int]]:
        """Yield each batch of a local epoch 0, 1, …, on the device, and its number of examples."""
        order = self._order(client, round, epoch, purpose)
        found = self._in_memory(client, order) if self._resident else None
        batches = gather(*found, self.module.batch_size) if found else self.module.client_batches(client, order)
        sizes = iter(batch_sizes(batches))
        for batch in batches:
            ready = self._server.prepare_batch(batch)
            yield ready, batch[0].size(0) if type(batch) is TrainingBatch else next(sizes, None) or examples_in(batch)

    def _in_memory(self, client: int, order: Any) -> tuple[TensorDataset, Tensor] | None:
        """Find the rows of a local epoch in a dataset in memory, on the device where they can be; None for others."""
        found = self.module.epoch_rows(client, order)
        if found is None or not len(found[1]):
            return None
        return (self._resident and self._resident.place(*found)) or found

    def rows(self, client: int, round: int, epochs: int) -> Rows | None:
        """Find the rows of a client's local epochs in a dataset in memory; None for other data."""
        orders = (self._order(client, round, epoch) for epoch in range(epochs))
        found = [each for order in orders if (each := self._in_memory(client, order))]
        if not found or len(found) < epochs:
            return None
        rows = [rows for _, rows in found]
        taken = rows[0] if epochs == 1 else torch.cat(rows)
        return Rows(found[0][0], taken, len(rows[0]), self.module.batch_size)
