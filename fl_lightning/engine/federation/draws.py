"""CohortDraws: the part of the data module that draws the clients of each round."""

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fl_lightning.engine.federation.availability import Availability, Turnout
from fl_lightning.engine.federation.names import label
from fl_lightning.engine.federation.sampling import ClientSampler
from fl_lightning.errors import ConfigurationError, check_at_least
from fl_lightning.seeding import generator

PADDING = -1  # stands in place of a client id where a device has no client left to train


class ClientIds(list[int]):
    """A batch of the Trainer's training data: the ids of the clients to train."""


@dataclass(frozen=True)
class Dealing:
    """How a fit deals the clients of a round to batches and devices.

    Attributes:
        round: returns the number of the current round.
        num_steps: returns the number of batches that a client trains on in a round, given both.
        group_size: number of clients that train together; above 1, each group is a batch.
        in_order: whether clients train in order of id, as where updates are summed as they arrive.
    """

    round: Callable[[], int]
    num_steps: Callable[[int, int], int]
    group_size: int = 1
    in_order: bool = False


class CohortDraws(LightningDataModule):
    """Draws the clients of each round, and deals them to the devices.

    Attributes:
        num_clients: N, the number of clients.
        client_names: N different names of the clients, for messages, tables and plots; None for numbers alone.
        participation: clients per round, as a share in (0, 1] (float) or a number of clients (int).
        sampler: the sampler that draws each round's cohort.
        availability: model of the clients that can take part, drop out or are late; None if all updates arrive.
        clients_per_batch: number of clients that the Trainer sees as one batch.
        seed: the seed of the cohorts.
        dealing: how the last fit dealt clients; None before the first.
    """

    num_clients: int
    client_names: Sequence[str] | None = None
    participation: int | float
    sampler: ClientSampler
    availability: Availability | None
    clients_per_batch: int
    seed: int
    dealing: Dealing | None = None
    _last: tuple[Tensor, tuple[Any, ...], list[int]] | None = None  # sizes, settings and clients of the last draw

    def client_num_samples(self, client: int) -> int:
        """Return n_k, the client's number of training examples."""
        raise NotImplementedError

    def client_label(self, client: int) -> str:
        """Write a client for a message: "3", or "3 (oslo)" for a client with a name."""
        return label(client, self.client_names)

    def num_batches(self, num_samples: int) -> int:
        """Return the number of batches in one epoch of a client with ``num_samples`` examples."""
        raise NotImplementedError

    @cached_property
    def sizes(self) -> Tensor:
        """(N,) numbers of training examples, one per client."""
        check_at_least(1, num_clients=self.num_clients)
        return torch.tensor([self.client_num_samples(k) for k in range(self.num_clients)])

    @property
    def num_with_data(self) -> int:
        """Number of clients that have data; no other client can take part."""
        return int((self.sizes > 0).sum())

    @property
    def cohort_size(self) -> int:
        """K, the number of clients per round, unless the sampler draws fewer.

        K is ``participation`` of all N clients, and at most the number of clients that have data.

        Raises:
            ConfigurationError: no client has data, or ``participation`` is larger than the number of clients.
        """
        with_data = self.num_with_data
        if not with_data:
            raise ConfigurationError(f"none of the {self.num_clients} clients has data: check the partition")
        share = isinstance(self.participation, float)
        wanted = max(1, round(self.participation * self.num_clients)) if share else int(self.participation)
        if wanted > self.num_clients:
            raise ConfigurationError(
                f"participation asks for {wanted} clients per round, but there are {self.num_clients}"
            )
        return min(wanted, with_data)

    def cohort(self, round: int) -> list[int]:
        """Draw the clients of a round (1, 2, …), in ascending order; the draw depends on the seed and the round alone.

        Returns:
            The clients that train, whose updates arrive; with ``availability`` there may be none.

        Raises:
            ConfigurationError: the sampler draws no client, too many clients, a client twice, an unknown client, or a
                client without data.
        """
        if self.availability is not None:
            return list(self.turnout(round).arrived)
        return list(self._once(round, lambda: self._draw(self.sizes, self.cohort_size, round)))

    def turnout(self, round: int) -> Turnout:
        """Draw the clients that are selected for a round (1, 2, …), and what becomes of them.

        Raises:
            ConfigurationError: as for :meth:`cohort`.
        """
        simulation = self.availability
        if simulation is None:
            return Turnout(arrived=tuple(self.cohort(round)))
        sizes = self.sizes * simulation.present(self.num_clients, round, self.seed)
        count = min(builtins.round(simulation.over_selection * self.cohort_size), int((sizes > 0).sum()))
        selected = self._once(round, lambda: self._draw(sizes, count, round) if count else [])
        return simulation.turnout(
            selected, self.cohort_size, lambda client: self._num_steps(client, round), round, self.seed
        )

    def _once(self, round: int, draw: Callable[[], list[int]]) -> list[int]:
        """Draw a round's clients, or return the last draw if it was the same: a draw goes through all N clients."""
        drawn_by = (round, self.seed, self.participation, self.sampler, self.availability)
        if self._last is None or self._last[0] is not self.sizes or self._last[1] != drawn_by:
            self._last = (self.sizes, drawn_by, draw())
        return self._last[2]

    def _num_steps(self, client: int, round: int) -> int:
        """Return the number of batches that a client trains on in a round; before a fit, in one epoch."""
        if self.dealing is None:
            return self.num_batches(int(self.sizes[client]))
        return self.dealing.num_steps(client, round)

    def _draw(self, sizes: Tensor, count: int, round: int) -> list[int]:
        """Draw clients of a round with the sampler.

        Args:
            sizes: (N,) numbers of training examples; 0 for clients that cannot take part.
            count: largest number of clients to draw.
            round: the round's number, 1, 2, …
        """
        drawn = self.sampler.draw(sizes, count, round, generator(self.seed, "cohort", round))
        clients, name = sorted(int(k) for k in drawn), type(self.sampler).__name__
        if not 0 < len(clients) <= count or len(set(clients)) < len(clients):
            raise ConfigurationError(
                f"expected {name} to draw 1 to {count} distinct clients, as participation says, got "
                f"{clients} for round {round}"
            )
        strangers = [k for k in clients if not 0 <= k < self.num_clients or not sizes[k]]
        if strangers:
            there = " and are available" if self.availability else ""
            raise ConfigurationError(
                f"expected {name} to draw clients from 0 to {self.num_clients - 1} that have data{there}, got "
                f"{strangers} in round {round}"
            )
        return clients

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of this device's share of the cohort, in batches of ``clients_per_batch`` client ids."""
        self.cohort_size  # noqa: B018  # raises what is wrong with a client's data; Lightning hides errors of len()
        return DataLoader(_Ids(), batch_sampler=_CohortBatches(self), collate_fn=ClientIds)


class _Ids(Dataset[int]):
    """A dataset whose examples are their own indices: the client ids and the padding."""

    def __getitem__(self, index: int) -> int:
        return index


class _CohortBatches:
    """Yields lists of client ids: this device's share of the cohort, padded to one length for all devices and rounds.

    Clients are dealt to the devices by size, the largest first, back and forth (0, 1, 1, 0, …), so that the devices
    have similar work in total and at any time. Where updates are summed as they arrive, clients train in order of id.
    """

    def __init__(self, data: CohortDraws) -> None:
        self.data = data

    def __len__(self) -> int:
        devices, group = self._world()[1], self._group_size()
        if group > 1:
            return ceil(ceil(self.data.cohort_size / group) / devices)
        return ceil(ceil(self.data.cohort_size / devices) / self.data.clients_per_batch)

    def __iter__(self) -> Iterator[list[int]]:
        rank, devices = self._world()
        dealing, group = self.data.dealing, self._group_size()
        round = dealing.round() if dealing else 1
        cohort = self.data.cohort(round)
        if group > 1:
            cohort.sort(key=lambda client: -self.data._num_steps(client, round))
            groups = [cohort[i : i + group] for i in range(0, len(cohort), group)]
            mine = [each for i, each in enumerate(groups) if rank == _dealt_to(i, devices)]
            yield from mine + [[PADDING]] * (len(self) - len(mine))
            return
        if devices > 1 and not (dealing and dealing.in_order):
            cohort.sort(key=lambda client: -int(self.data.sizes[client]))
        mine_ids = [k for i, k in enumerate(cohort) if rank == _dealt_to(i, devices)]
        mine_ids += [PADDING] * (ceil(self.data.cohort_size / devices) - len(mine_ids))
        size = self.data.clients_per_batch
        yield from (mine_ids[i : i + size] for i in range(0, len(mine_ids), size))

    def _group_size(self) -> int:
        return self.data.dealing.group_size if self.data.dealing else 1

    def _world(self) -> tuple[int, int]:
        trainer = self.data.trainer
        return (trainer.global_rank, trainer.world_size) if trainer else (0, 1)


def _dealt_to(index: int, devices: int) -> int:
    """Return the device that gets a client or group, dealt back and forth: 0, 1, 1, 0, …"""
    return min(index % (2 * devices), -(index + 1) % (2 * devices))
