"""LocalData: what clients train on, and how much of it they do in a round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from functools import cached_property, partial
from typing import Any

from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning.engine.federation.batches import ResidentData, TrainingBatch, batch_sizes
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
        count = self.module.num_batches(int(self.module.sizes[client]))
        return self._settings.work(self._stragglers(client, round), partial(range, count))

    def _stragglers(self, client: int, round: int) -> Any:
        return self._server.generator("stragglers", round, client) if self._settings.stragglers else None

    def _first_batches(self, client: int, round: int) -> Sized:
        """Return the batches of a client's first pass, apart from its training, such as for counting them."""
        with isolated(self._server.device):
            batches = self.module.client_batches(client, self._order(client, round, 0))
            return batches if isinstance(batches, Sized) else list(batches)

    def _order(self, client: int, round: int, epoch: int) -> Any:
        return self._server.generator("batches", round, client, epoch)

    def batches(self, client: int, round: int, epoch: int) -> Iterator[tuple[Any, int]]:
        """Yield each batch of a local epoch 0, 1, …, on the device, and its number of examples."""
        batches = self._on_device(client, round, epoch)
        if batches is None:
            batches = self.module.client_batches(client, self._order(client, round, epoch))
        sizes = iter(batch_sizes(batches))
        for batch in batches:
            ready = self._server.prepare_batch(batch)
            yield ready, batch[0].size(0) if type(batch) is TrainingBatch else next(sizes, None) or examples_in(batch)

    def _on_device(self, client: int, round: int, epoch: int) -> Iterable[Any] | None:
        """Gather the batches of a local epoch on the device, where they can be; None elsewhere."""
        if self._resident is None:
            return None
        found = self.module.indexed_batches(client, self._order(client, round, epoch))
        return self._resident.batches(*found) if found and found[1] else None

    def rows(self, client: int, round: int, epoch: int) -> list[Any] | None:
        """Find the rows of each batch of a local epoch in a dataset in memory; None for other data.

        Returns:
            Pairs of the dataset and the row numbers (B,) of a batch, both on the device where they can be.
        """
        found = self.module.indexed_batches(client, self._order(client, round, epoch))
        if found and found[1] and self._resident is not None:
            found = self._resident.place(*found) or found
        return None if found is None else [(found[0], rows) for rows in found[1]]
