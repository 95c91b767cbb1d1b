"""FederatedData: a data module as the engine sees it; draws the clients of each round, and deals them to devices."""

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fl_lightning.engine.federation.clients import ClientData
from fl_lightning.engine.federation.cohorts import ClientAvailability, ClientSampler, Turnout
from fl_lightning.errors import ConfigurationError
from fl_lightning.seeding import generator

PADDING = -1  # stands in place of a client id where a device has no client left to train


class ClientIds(list[int]):
    """A batch of the Trainer's training data: the ids of the clients to train."""


@dataclass(frozen=True)
class Dealing:
    """Says how a fit deals the clients of each round to its devices, and in which order a device trains its clients.

    Attributes:
        num_steps: function that counts the batches on which a client trains, given its id and the round; None for the
            batches of one epoch.
        rank: this device's number, from 0 to ``devices`` - 1.
        devices: number of devices.
        group_size: number of clients that train at once; a group of them is one of the Trainer's batches.
        in_order: whether clients that train one after another do so in order of id on several devices, too, as where
            updates are summed as they arrive; otherwise the largest client comes first.
    """

    num_steps: Callable[[int, int], int] | None = None
    rank: int = 0
    devices: int = 1
    group_size: int = 1
    in_order: bool = False


class FederatedData(ClientData):
    """Draws the clients of each round, and deals them to the devices.

    Attributes:
        participation: clients per round, as a share in (0, 1] (float) or a number of clients (int).
        sampler: the sampler that draws each round's cohort.
        availability: model of the clients that can take part, drop out or are late; None if all updates arrive.
        clients_per_batch: number of clients that the Trainer sees as one batch, if they train one after another.
        seed: the seed of the cohorts.
        dealing: the order and the devices of a round's clients; the orchestrator sets this attribute at a fit's start.
    """

    participation: int | float
    sampler: ClientSampler
    availability: ClientAvailability | None
    clients_per_batch: int
    seed: int
    dealing: Dealing = Dealing()
    _last: tuple[Tensor, tuple[Any, ...], list[int]] | None = None  # sizes, settings and clients of the last draw

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
        if isinstance(self.participation, float):
            wanted = max(1, round(self.participation * self.num_clients))
        else:
            wanted = int(self.participation)
        if wanted > self.num_clients:
            raise ConfigurationError(
                f"participation asks for {wanted} clients per round, but there are {self.num_clients}"
            )
        return min(wanted, with_data)

    @property
    def largest_cohort(self) -> int:
        """The largest number of clients that a round may have."""
        return self.num_with_data if self.sampler.sampling == "poisson" else self.cohort_size

    def cohort(self, round: int) -> list[int]:
        """Draw the clients of a round (1, 2, …), in ascending order; the draw depends on the seed and the round alone.

        Returns:
            The clients that train, whose updates arrive; with ``availability`` there may be none.

        Raises:
            ConfigurationError: the sampler draws no client, too many clients, a client twice, an unknown client, or a
                client without data; a sampler of the kind "poisson" may draw none and all.
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
            return Turnout(arrived=tuple(self.cohort(round)))  # of a subclass that defines cohort, too
        sizes = self.sizes * simulation.present(self.num_clients, round, self.seed)
        count = min(builtins.round(simulation.over_selection * self.cohort_size), int((sizes > 0).sum()))
        selected: list[int] = []
        if count:
            selected = self._once(round, lambda: self._draw(sizes, count, round))
        return simulation.turnout(
            selected, self.largest_cohort, lambda client: self._num_steps(client, round), round, self.seed
        )

    def _once(self, round: int, draw: Callable[[], list[int]]) -> list[int]:
        """Draw a round's clients, or return the last draw if it was the same: a draw goes through all N clients."""
        drawn_by = (round, self.seed, self.participation, self.sampler, self.availability)
        if self._last is None or self._last[0] is not self.sizes or self._last[1] != drawn_by:
            self._last = (self.sizes, drawn_by, draw())
        return self._last[2]

    def _num_steps(self, client: int, round: int) -> int:
        """Return the number of batches that a client trains on in a round; without a fit, in one epoch."""
        count = self.dealing.num_steps
        if count is None:
            return self.num_batches(int(self.sizes[client]))
        return count(client, round)

    def _draw(self, sizes: Tensor, count: int, round: int) -> list[int]:
        """Draw clients of a round with the sampler.

        Args:
            sizes: (N,) numbers of training examples; 0 for clients that cannot take part.
            count: largest number of clients to draw.
            round: the round's number, 1, 2, …
        """
        drawn = self.sampler.draw(sizes, count, round, generator(self.seed, "cohort", round))
        ids = drawn.tolist() if isinstance(drawn, Tensor) else drawn
        clients = sorted(map(int, ids))
        name = type(self.sampler).__name__
        least, most = (0, self.num_clients) if self.sampler.sampling == "poisson" else (1, count)
        if not least <= len(clients) <= most or len(set(clients)) < len(clients):
            raise ConfigurationError(
                f"expected {name} to draw {least} to {most} distinct clients, as participation says, got "
                f"{clients} for round {round}"
            )
        known = torch.tensor([k for k in clients if 0 <= k < self.num_clients], dtype=torch.int64)
        strangers = sorted({*clients}.difference(known[sizes[known] > 0].tolist()))
        if strangers:
            there = " and are available" if self.availability else ""
            raise ConfigurationError(
                f"expected {name} to draw clients from 0 to {self.num_clients - 1} that have data{there}, got "
                f"{strangers} in round {round}"
            )
        return clients

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of this device's share of the cohort, in batches of ``clients_per_batch`` client ids.

        Raises:
            ConfigurationError: the Trainer trains no orchestrator.
        """
        module = self.trainer.lightning_module if self.trainer else None
        if module is not None and not hasattr(module, "on_batch_passed_on"):
            name = type(module).__name__
            raise ConfigurationError(
                f"expected trainer.fit(FederatedOrchestrator({name}(…)), datamodule=…), got {name} itself: the "
                "orchestrator trains it on each client"
            )
        self.cohort_size  # noqa: B018  # raises what is wrong with a client's data; Lightning hides errors of len()
        return DataLoader(_Ids(), batch_sampler=_CohortBatches(self), collate_fn=ClientIds)

    def _in_turn(self, round: int) -> list[int]:
        """Return a round's clients in the order in which they are dealt."""
        cohort = self.cohort(round)
        dealing = self.dealing
        if dealing.group_size > 1:
            return sorted(cohort, key=lambda client: -self._num_steps(client, round))
        if dealing.devices > 1 and not dealing.in_order:
            return sorted(cohort, key=lambda client: -self._share(client, round))
        return cohort

    def _share(self, client: int, round: int) -> float:
        """Return the number of examples that a client goes through in a round, about."""
        size = int(self.sizes[client])
        return size * self._num_steps(client, round) / max(1, self.num_batches(size))


class _Ids(Dataset[int]):
    """A dataset whose examples are their own indices: the client ids and the padding."""

    def __getitem__(self, index: int) -> int:
        return index


class _CohortBatches:
    """Yields lists of client ids: this device's share of the cohort, padded to one length for all devices and rounds.

    Clients that train one after another are dealt to the devices by the examples that they go through, the largest
    share first, each to the device that has least. The devices meet before every batch, so that a device's clients are
    one batch. Groups of clients that train at once are a batch each, and dealt by their steps, back and forth (0, 1, 1,
    0, …), so that the devices have similar work at any time; so are clients whose updates are summed as they arrive,
    in order of id.
    """

    def __init__(self, data: FederatedData) -> None:
        self.data = data

    def __len__(self) -> int:
        return ceil(self._hands() / self._hands_per_batch())

    def __iter__(self) -> Iterator[list[int]]:
        dealing = self.data.dealing
        trainer = self.data.trainer
        round = trainer.current_epoch + 1 if trainer else 1
        cohort = self.data._in_turn(round)
        size = dealing.group_size
        hands = [cohort[start : start + size] for start in range(0, len(cohort), size)]
        devices = self._devices(hands, round)
        own_hands = [hand for hand, device in zip(hands, devices, strict=True) if device == dealing.rank]
        own_hands += [[PADDING]] * (self._hands() - len(own_hands))
        per_batch = self._hands_per_batch()
        for start in range(0, len(own_hands), per_batch):
            yield [*chain.from_iterable(own_hands[start : start + per_batch])]

    def _devices(self, hands: Sequence[Sequence[int]], round: int) -> list[int]:
        """Return the device that gets each hand of a round."""
        dealing = self.data.dealing
        if not self._meets_once:
            return [_device_of(number, dealing.devices) for number in range(len(hands))]
        return _even_out([self.data._share(client, round) for (client,) in hands], dealing.devices, self._hands())

    def _hands(self) -> int:
        """Return the number of clients, or of groups, that each device is dealt, padding included."""
        dealing = self.data.dealing
        return ceil(ceil(self.data.largest_cohort / dealing.group_size) / dealing.devices)

    def _hands_per_batch(self) -> int:
        if self._meets_once:
            return self._hands()
        return self.data.clients_per_batch if self.data.dealing.group_size == 1 else 1

    @property
    def _meets_once(self) -> bool:
        """Whether several devices meet once a round, in which a device's clients are one batch."""
        dealing = self.data.dealing
        trainer: Any = self.data.trainer
        is_trial = trainer is not None and bool(trainer.fast_dev_run)  # which trains one batch
        return dealing.devices > 1 and dealing.group_size == 1 and not dealing.in_order and not is_trial


def _device_of(index: int, devices: int) -> int:
    """Return the device that gets a client or group, dealt back and forth: 0, 1, 1, 0, …"""
    return min(index % (2 * devices), -(index + 1) % (2 * devices))


def _even_out(costs: Sequence[float], devices: int, most: int) -> list[int]:
    """Return a device for each cost: one after another, the device that has the least so far, and room.

    >>> _even_out([5, 4, 3, 3, 3], devices=2, most=3)
    [0, 1, 1, 0, 1]

    Args:
        costs: the costs, the largest first, for devices with similar sums.
        devices: number of devices.
        most: the largest number of costs for a device.
    """
    sums = [0.0] * devices
    counts = [0] * devices
    dealt: list[int] = []
    for cost in costs:
        free = [device for device in range(devices) if counts[device] < most]
        device = min(free, key=lambda device: sums[device])
        sums[device] += cost
        counts[device] += 1
        dealt.append(device)
    return dealt
