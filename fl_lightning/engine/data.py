"""FederatedDataModule: the clients' data, the cohorts, the batches."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fl_lightning.engine.sampling import ClientSampler, UniformSampler
from fl_lightning.engine.seeding import derive, generator, isolated, seed_globals
from fl_lightning.errors import ConfigurationError

PADDING = -1  # in place of a client id, where a device has no client left to train


class ClientIds(list[int]):
    """A batch of the Trainer's training data: the ids of the clients to train."""


class TrainingBatch(list[Any]):
    """A batch of training examples from memory, which transfer hooks may augment. Other batches are plain lists."""


class FederatedDataModule(LightningDataModule):
    """The data of ``num_clients`` clients. Subclasses define ``num_clients`` and :meth:`client_dataset`.

    Lightning's training data are the client ids of each round's cohort; a client's own batches come from
    :meth:`client_batches`. A client without data is never drawn.

    Args:
        batch_size: number of examples in a client's batch.
        participation: clients per round, as a share in (0, 1] (float) or a number of clients (int).
        sampler: the sampler that draws each round's cohort; :class:`UniformSampler` by default.
        clients_per_batch: number of clients that the Trainer sees as one batch. Each batch costs the Trainer about
            0.6 ms, so group tiny clients.
        num_workers: number of DataLoader processes for a client's data; unused for tensors in memory.
        seed: the seed of the cohorts and, in subclasses, of the partition.

    Raises:
        ConfigurationError: ``participation`` is outside its range, or ``batch_size`` or ``clients_per_batch`` is less
            than 1.
    """

    num_clients: int

    def __init__(
        self,
        batch_size: int = 32,
        participation: int | float = 1.0,
        sampler: ClientSampler | None = None,
        clients_per_batch: int = 1,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1 or clients_per_batch < 1:
            raise ConfigurationError(
                f"batch_size and clients_per_batch must be at least 1, got {batch_size} and {clients_per_batch}"
            )
        if participation <= 0 or (isinstance(participation, float) and participation > 1):
            raise ConfigurationError(
                "participation must be a share in (0, 1] or a whole number of clients per round, "
                f"got {participation}: 0.2 draws a fifth of the clients, 5 draws five"
            )
        self.batch_size = batch_size
        self.participation = participation
        self.sampler = sampler or UniformSampler()
        self.clients_per_batch = clients_per_batch
        self.num_workers = num_workers
        self.seed = seed

    def client_dataset(self, client: int) -> Dataset[Any]:
        """Return the training examples of one client, 0 <= client < num_clients."""
        raise ConfigurationError(f"{type(self).__name__} must define client_dataset(client)")

    def client_num_samples(self, client: int) -> int:
        """Return n_k, the client's number of training examples."""
        return len(self.client_dataset(client))  # type: ignore[arg-type]  # map-style: it has a length

    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of training examples per client and class, or None for data without classes."""
        return None

    def held_out_batches(self, client: int) -> Iterable[Any]:
        """Return batches of examples that the client keeps back from training for its evaluation; none by default."""
        return ()

    def proxy_dataloader(self) -> DataLoader[Any] | None:
        """Return a loader of the server's proxy set, for rules that learn on a proxy set; None without a proxy set."""
        return None

    @cached_property
    def sizes(self) -> Tensor:
        """(N,) numbers of training examples, one per client."""
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
            raise ConfigurationError(f"participation asks for {wanted} clients per round, there are {self.num_clients}")
        return min(wanted, with_data)

    def cohort(self, round: int) -> list[int]:
        """Draw the clients of a round (1, 2, …), in ascending order; the draw depends on the seed and the round alone.

        Raises:
            ConfigurationError: the sampler draws no client, too many clients, a client twice, an unknown client, or a
                client without data.
        """
        drawn = self.sampler.draw(self.sizes, self.cohort_size, round, generator(self.seed, "cohort", round))
        clients = sorted(int(k) for k in drawn)
        self._check_cohort(clients, round)
        return clients

    def _check_cohort(self, clients: list[int], round: int) -> None:
        name = type(self.sampler).__name__
        if not 0 < len(clients) <= self.cohort_size or len(set(clients)) < len(clients):
            raise ConfigurationError(
                f"expected {name} to draw 1 to {self.cohort_size} distinct clients, as participation says, got "
                f"{clients} for round {round}"
            )
        strangers = [k for k in clients if not 0 <= k < self.num_clients or not self.sizes[k]]
        if strangers:
            raise ConfigurationError(
                f"expected {name} to draw clients from 0 to {self.num_clients - 1} that have data, got {strangers} in "
                f"round {round}"
            )

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of this device's share of the cohort, in batches of ``clients_per_batch`` client ids."""
        return DataLoader(_Ids(), batch_sampler=_CohortBatches(self), collate_fn=ClientIds)

    def client_batches(self, client: int, order: torch.Generator) -> Iterator[list[Any]]:
        """Return one epoch of a client's batches, shuffled by ``order``.

        Tensors in memory are gathered once and split. Any other dataset is read by a DataLoader, with a seed for each
        example, so that the batches do not depend on the number of workers.
        """
        dataset = self.client_dataset(client)
        indices = torch.randperm(len(dataset), generator=order)  # type: ignore[arg-type]  # map-style: it has a length
        if (tensors := gather(dataset, indices)) is not None:
            return map(TrainingBatch, zip(*(torch.split(t, self.batch_size) for t in tensors), strict=True))
        seed = int(torch.randint(2**31, (), generator=order))
        return iter(
            DataLoader(
                _SeededItems(dataset, seed),
                batch_size=self.batch_size,
                sampler=indices.tolist(),
                num_workers=self.num_workers,
                generator=order,
            )
        )


def gather(dataset: Dataset[Any], indices: Tensor) -> Sequence[Tensor] | None:
    """Return rows ``indices`` of a dataset with tensors in memory (TensorDataset, or a Subset of one), or None."""
    if type(dataset) is Subset:
        return gather(dataset.dataset, torch.as_tensor(dataset.indices)[indices])
    if type(dataset) is TensorDataset:
        return [tensor[indices] for tensor in dataset.tensors]
    return None


class _Ids(Dataset[int]):
    """A dataset whose examples are their own indices: the client ids and the padding."""

    def __getitem__(self, index: int) -> int:
        return index


class _CohortBatches:
    """Lists of client ids: this device's share of the cohort, padded to a length that all devices and rounds share.

    Clients are dealt to the devices by size, the largest first, back and forth (0, 1, 1, 0, …), so that the devices
    have similar work in total and at any time.
    """

    def __init__(self, data: FederatedDataModule) -> None:
        self.data = data

    def __len__(self) -> int:
        per_device = -(-self.data.cohort_size // self._world()[1])
        return -(-per_device // self.data.clients_per_batch)

    def __iter__(self) -> Iterator[list[int]]:
        rank, devices = self._world()
        trainer = self.data.trainer
        cohort = self.data.cohort(trainer.lightning_module.round if trainer else 1)  # type: ignore[arg-type]
        if devices > 1:
            cohort.sort(key=lambda client: -int(self.data.sizes[client]))
        mine = [k for i, k in enumerate(cohort) if rank == min(i % (2 * devices), -(i + 1) % (2 * devices))]
        mine += [PADDING] * (-(-self.data.cohort_size // devices) - len(mine))
        size = self.data.clients_per_batch
        return (mine[i : i + size] for i in range(0, len(mine), size))

    def _world(self) -> tuple[int, int]:
        trainer = self.data.trainer
        return (trainer.global_rank, trainer.world_size) if trainer else (0, 1)


class _SeededItems(Dataset[Any]):
    """A dataset whose random augmentation of an example depends on the seed and the example's index alone."""

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # map-style: it has a length

    def __getitem__(self, index: int) -> Any:
        with isolated(torch.device("cpu")):
            seed_globals(derive(self.seed, "item", index), torch.device("cpu"))
            return self.dataset[index]
