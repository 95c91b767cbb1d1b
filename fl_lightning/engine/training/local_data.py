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
        orchestrator: the orchestrator, whose data module has the batches.
        settings: the local work of every client.

    Attributes:
        datamodule: the data module.
    """

    def __init__(self, orchestrator: Server, settings: LocalSettings) -> None:
        self.datamodule = orchestrator.data
        self._orchestrator = orchestrator
        self._settings = settings
        self._works: dict[int, Work] = {}  # of clients that do all of their work, by their number of batches

    @cached_property
    def _sizes(self) -> list[int]:
        return list(self.datamodule.sizes.tolist())

    @cached_property
    def _resident(self) -> ResidentData | None:
        device = self._orchestrator.device
        if device.type == "cpu" or not declares(self.datamodule, "in_rows", ("client_batches",)):
            return None
        for hook in ("on_before_batch_transfer", "transfer_batch_to_device"):
            for module in (self._orchestrator.client, self.datamodule):
                if is_overridden(hook, module, DataHooks):
                    return None
        return ResidentData(device)

    def work(self, client: int, round: int) -> Work:
        """Decide a client's work in a round; its batches are asked for when they are to be counted."""
        return self._settings.work(self._stragglers(client, round), lambda: self._first_batches(client, round))

    def counted_work(self, client: int, round: int) -> Work:
        """Decide a client's work in a round, with batches counted as the data module counts them."""
        count = self.datamodule.num_batches(self._sizes[client])
        if self._settings.stragglers:
            return self._settings.work(self._stragglers(client, round), partial(range, count))
        if count not in self._works:
            self._works[count] = self._settings.work(None, partial(range, count))
        return self._works[count]

    def _stragglers(self, client: int, round: int) -> Any:
        return self._orchestrator.generator("stragglers", round, client) if self._settings.stragglers else None

    def _first_batches(self, client: int, round: int) -> Sized:
        """Return the batches of a client's first pass, apart from its training, such as for counting them."""
        with isolated(self._orchestrator.device):
            batches = self.datamodule.client_batches(client, self._order(client, round, 0))
            return batches if isinstance(batches, Sized) else list(batches)

    def _order(self, client: int, round: int, epoch: int, purpose: str = "batches") -> Any:
        return self._orchestrator.generator(purpose, round, client, epoch)

    def batches(self, client: int, round: int, epoch: int, purpose: str = "batches") -> Iterator[tuple[Any, int]]:
        """Yield each batch of a local epoch 0, 1, …, on the device, and its number of examples.

        The number is that of our own batches, or what the DataLoader's sampler says; else what the batch looks like,
        and 1 if it does not tell.
        """
        order = self._order(client, round, epoch, purpose)
        resident = self._rows_in_memory(client, order) if self._resident else None
        if resident is None:
            batches = self.datamodule.client_batches(client, order)
        else:
            batches = gather(*resident, self.datamodule.batch_size)
        sizes = iter(batch_sizes(batches))
        for batch in batches:
            ready = self._orchestrator.prepare_batch(batch)
            if type(batch) is TrainingBatch:
                yield ready, batch[0].size(0)
            else:
                yield ready, next(sizes, None) or examples_in(batch)

    def _rows_in_memory(self, client: int, order: Any) -> tuple[TensorDataset, Tensor] | None:
        """Find the rows of a local epoch in a dataset in memory, on the device where they can be; None for others."""
        located = self.datamodule.epoch_rows(client, order)
        if located is None:
            return None
        dataset, rows = located
        if not len(rows):
            return None
        copied = self._resident.place(dataset, rows) if self._resident else None
        return copied or located

    def rows(self, client: int, round: int, epochs: int) -> Rows | None:
        """Find the rows of a client's local epochs in a dataset in memory; None for other data."""
        datasets: list[TensorDataset] = []
        rows_by_epoch: list[Tensor] = []
        for epoch in range(epochs):
            located = self._rows_in_memory(client, self._order(client, round, epoch))
            if located is None:
                return None
            dataset, rows = located
            datasets.append(dataset)
            rows_by_epoch.append(rows)
        if not datasets:
            return None
        all_rows = rows_by_epoch[0] if epochs == 1 else torch.cat(rows_by_epoch)
        return Rows(datasets[0], all_rows, len(rows_by_epoch[0]), self.datamodule.batch_size)
