"""FederatedDataModule: the clients' data and batches. PartitionedData: an ordinary data set, dealt to clients."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate
from typing_extensions import override

from fl_lightning.engine.federation.availability import Availability
from fl_lightning.engine.federation.batches import (
    Examples,
    SeededBatches,
    TrainingBatch,
    check_examples,
    gather,
    in_memory,
    unchanged,
)
from fl_lightning.engine.federation.draws import PADDING, ClientIds, CohortDraws
from fl_lightning.engine.federation.partition import Partition, Parts, Stated
from fl_lightning.engine.federation.sampling import ClientSampler, UniformSampler
from fl_lightning.engine.federation.sources import Dealt, Loaders, column_of, deal, training_data
from fl_lightning.errors import ConfigurationError, check_at_least
from fl_lightning.seeding import numpy_generator

TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
OWN_HOOKS = ("teardown", "on_exception", "state_dict", "load_state_dict")
LOADERS = ("val_dataloader", "test_dataloader", "predict_dataloader")

__all__ = [  # noqa: RUF022  # the classes first
    "FederatedDataModule",
    "PartitionedData",
    "TrainingBatch",
    "ClientIds",
    "PADDING",
    "LOADERS",
    "TRANSFER_HOOKS",
]


class FederatedDataModule(CohortDraws):
    """Holds the data of ``num_clients`` clients. Subclasses define ``num_clients`` and :meth:`client_dataset`.

    The Trainer's training batches are the client ids of each round's cohort; the batches on which a client trains come
    from :meth:`client_batches`. A client without data is never drawn.

    Args:
        batch_size: number of examples in a client's batch.
        participation: clients per round, as a share in (0, 1] (float) or a number of clients (int).
        sampler: the sampler that draws each round's cohort; :class:`UniformSampler` by default.
        availability: model of the clients that can take part in a round, drop out or are late; by default, every client
            can take part, and every update arrives.
        client_names: N different names, of the clients 0, 1, …, N - 1, which messages, tables and plots show; settings
            and metrics use the clients' numbers. A subclass may define ``client_names`` itself.
        clients_per_batch: number of clients that the Trainer sees as one batch. Each batch costs the Trainer about
            0.6 ms, so group tiny clients.
        num_workers: number of DataLoader processes for a client's data; unused for tensors in memory.
        seed: the seed of the cohorts and, in subclasses, of the partition.
        drop_last: whether to leave out a client's last batch if that batch is smaller than ``batch_size``; a client's
            only batch always stays. The client's number of examples, n_k, counts all examples.
        collate_fn: function that makes a client's batch from a list of its examples, for examples that cannot be
            stacked (texts of different length, graphs); PyTorch's ``default_collate`` by default. Random numbers that
            the function draws are seeded for each batch.

    Raises:
        ConfigurationError: ``participation`` is outside its range, ``batch_size`` or ``clients_per_batch`` is less than
            1, ``num_workers`` is less than 0, or ``client_names`` are given to a subclass whose names are a property;
            when training begins, ``client_names`` are not N different names.
    """

    #: Whether the transfer hooks treat each example of a batch alone, so that the batches of several clients may go
    #: through them together; a subclass that overrides a transfer hook must set this attribute again.
    by_example: ClassVar[bool] = False

    #: Whether ``client_batches`` returns the batches of ``indexed_batches``; a subclass that overrides
    #: ``client_batches`` must set this attribute again.
    in_rows: ClassVar[bool] = True

    def __init__(
        self,
        batch_size: int = 32,
        participation: int | float = 1.0,
        sampler: ClientSampler | None = None,
        clients_per_batch: int = 1,
        num_workers: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        availability: Availability | None = None,
        client_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1 or clients_per_batch < 1:
            raise ConfigurationError(
                f"batch_size and clients_per_batch must be at least 1, got {batch_size} and {clients_per_batch}"
            )
        if not participation > 0 or (isinstance(participation, float) and participation > 1):  # also refuses nan
            raise ConfigurationError(
                "participation must be a share in (0, 1] or a whole number of clients per round, "
                f"got {participation}: 0.2 draws a fifth of the clients, 5 draws five"
            )
        check_at_least(0, num_workers=num_workers)
        self.batch_size = batch_size
        self.participation = participation
        self.sampler = sampler or UniformSampler()
        self.availability = availability
        self.clients_per_batch = clients_per_batch
        self.num_workers = num_workers
        self.seed = seed
        self.drop_last = drop_last
        self.collate_fn = collate_fn
        self._borrowed: list[str] = []
        if client_names is not None:
            try:
                self.client_names = client_names
            except AttributeError:
                raise ConfigurationError(
                    f"{type(self).__name__} names its clients itself, got client_names, too: leave client_names out"
                ) from None

    @staticmethod
    def from_datamodule(datamodule: LightningDataModule, **settings: Any) -> "PartitionedData":
        """Make an ordinary LightningDataModule federated.

        Args:
            datamodule: the data module, whose training set is dealt to the clients.
            settings: ``num_clients``, ``partition`` and the other arguments of :class:`PartitionedData`.
        """
        return PartitionedData(datamodule, **settings)

    @staticmethod
    def from_loaders(
        train: Any,
        val: Any = None,
        test: Any = None,
        predict: Any = None,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **settings: Any,
    ) -> "PartitionedData":
        """Make DataLoaders or datasets federated.

        Args:
            train: DataLoader or dataset, whose examples are dealt to the clients.
            val: DataLoader, several of them, or dataset to validate on.
            test: data to test on, like ``val``.
            predict: data to predict on, like ``val``.
            batch_size: number of examples in a batch; by default that of the loader ``train``, and 32 for datasets.
            collate_fn: function that makes a batch of examples; by default that of the loader ``train``.
            settings: ``num_clients``, ``partition`` and the other arguments of :class:`PartitionedData`.
        """
        loaders = Loaders(train, batch_size or 32, collate_fn, val=val, test=test, predict=predict)
        return PartitionedData(loaders, batch_size=batch_size, collate_fn=collate_fn, **settings)

    def missing(self) -> str | None:
        """Return one line on which data are missing and how to get them; None if the data are there, or not known.

        The method looks for files; it neither reads nor downloads them. ``prepare_data`` downloads what can be
        downloaded, and raises an error for the rest.
        """
        return None

    def downloads(self) -> bool:
        """Tell whether ``prepare_data`` downloads the data that :meth:`missing` names."""
        return False

    def client_dataset(self, client: int) -> Dataset[Any]:
        """Return the training examples of a client, 0 <= client < num_clients, as a map-style dataset with a length."""
        raise ConfigurationError(f"{type(self).__name__} must define client_dataset(client)")

    def client_num_samples(self, client: int) -> int:
        """Return n_k, the client's number of training examples."""
        parts = self._client_parts()
        return len(self._examples(client)) if parts is None else int(parts.sizes[client])

    @cached_property
    @override
    def sizes(self) -> Tensor:
        own = type(self).client_num_samples is not FederatedDataModule.client_num_samples
        parts = None if own else self._client_parts()
        return super().sizes if parts is None else parts.sizes

    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of training examples per client and class, or None for data without classes."""
        return None

    def held_out_batches(self, client: int) -> Iterable[Any]:
        """Return batches of examples that the client keeps back from training for its evaluation; none by default."""
        return ()

    def proxy_dataloader(self) -> DataLoader[Any] | None:
        """Return a loader of the server's proxy set, for rules that learn on a proxy set; None without a proxy set."""
        return None

    def borrow_loaders(self, module: LightningModule | None) -> None:
        """Use a module's evaluation loaders where this data module defines none; drop those borrowed before.

        Args:
            module: the client module; None to only drop the loaders borrowed before.
        """
        for name in self._borrowed:
            del self.__dict__[name]
        self._borrowed = [n for n in LOADERS if is_overridden(n, module) and not is_overridden(n, self)]
        for name in self._borrowed:
            setattr(self, name, getattr(module, name))

    def num_batches(self, num_samples: int) -> int:
        """Return the number of batches in one epoch of a client with ``num_samples`` examples."""
        whole, rest = divmod(num_samples, self.batch_size)
        return whole + (rest > 0 and not (self.drop_last and whole > 0))

    def client_batches(self, client: int, order: torch.Generator) -> Iterable[Any]:
        """Return one epoch of a client's batches, shuffled by ``order``: an iterable with a length.

        Without ``collate_fn``, tensors in memory are gathered once and split into a list. All other datasets are read
        by a DataLoader, with a seed for each example and each batch, so that the batches do not depend on the number
        of workers.
        """
        examples, indices = self._shuffled(client, order)
        if not len(indices):
            return []
        if self.collate_fn is None and (tensors := gather(examples, indices)) is not None:
            return list(map(TrainingBatch, zip(*(torch.split(t, self.batch_size) for t in tensors), strict=True)))
        seed = int(torch.randint(2**31, (), generator=order))
        batches = SeededBatches(examples, indices, self.batch_size, seed, self.collate_fn or default_collate)
        return DataLoader(batches, batch_size=None, collate_fn=unchanged, num_workers=self.num_workers, generator=order)

    def indexed_batches(self, client: int, order: torch.Generator) -> tuple[TensorDataset, list[Tensor]] | None:
        """Return the batches of :meth:`client_batches`, as defined here, by rows of a dataset in memory.

        Returns:
            The dataset, which may hold the examples of all clients, and the row numbers (B,) of each batch; None for
            data that are not in memory.
        """
        if self.collate_fn is not None:
            return None
        examples, indices = self._shuffled(client, order)
        found = in_memory(examples, indices)
        return None if found is None else (found[0], list(torch.split(found[1], self.batch_size)))

    def _shuffled(self, client: int, order: torch.Generator) -> tuple[Examples, Tensor]:
        """Return a client's examples, and the order in which an epoch takes them."""
        examples = self._examples(client)
        total = len(examples)
        indices = torch.randperm(total, generator=order)
        count = self.num_batches(total) * self.batch_size
        return examples, indices[:count] if count < total else indices

    def _client_parts(self) -> Parts | None:
        """Return each client's rows of the training set that a partition deals; None for clients with other data."""
        return None

    def _examples(self, client: int) -> Examples:
        try:
            dataset: Any = self.client_dataset(client)
        except Exception as error:
            error.add_note(f"raised by {type(self).__name__}.client_dataset({client})")
            raise
        if type(dataset) is TensorDataset:
            return dataset
        return check_examples(dataset, f"{type(self).__name__}.client_dataset({client})")


class PartitionedData(FederatedDataModule):
    """Deals the training set of an ordinary LightningDataModule to clients.

    The data module's other loaders, its transfer hooks, ``prepare_data`` and ``setup`` are used unchanged. Each fit
    deals the training set again, with the same seed.

    Args:
        datamodule: the data module; its ``train_dataloader`` returns one DataLoader over a map-style dataset.
        num_clients: N, the number of clients; leave it out with a stated partition, which sets N. With
            ``Natural(column)``, each value of the column is a client by default.
        partition: a :class:`Partition`; or a stated partition: either one list of example indices for each client, or
            one integer or string for each example, which stands for its client. The distinct values in sorted order are
            the clients 0, 1, … By default, random parts whose sizes differ by at most one.
        labels: (n,) class (for ``Natural``, group) of each training example, integers or strings. By default, the
            second tensor of a TensorDataset, the dataset's ``targets`` or ``labels``, or the second entry or the entry
            ``label`` of its examples.
        batch_size: number of examples in a client's batch; by default that of ``train_dataloader``.
        drop_last: as for :class:`FederatedDataModule`; by default that of ``train_dataloader``.
        collate_fn: as for :class:`FederatedDataModule`; by default that of ``train_dataloader``.
        federation: ``participation``, ``seed`` and the other arguments of :class:`FederatedDataModule`.

    Attributes:
        client_names: the given names; by default, the values of a column or of a stated partition that gives the client
            of each example, else None.

    Raises:
        ConfigurationError: ``num_clients`` is missing or contradicts the partition; on loading, the training set is
            iterable, the partition does not fit, or there are no labels for a partition by label.
    """

    def __init__(
        self,
        datamodule: LightningDataModule,
        num_clients: int | None = None,
        partition: Partition | Sequence[Any] | None = None,
        labels: Sequence[Any] | None = None,
        batch_size: int | None = None,
        drop_last: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **federation: Any,
    ) -> None:
        super().__init__(batch_size=32 if batch_size is None else batch_size, **federation)
        self._given = {"batch_size": batch_size, "drop_last": drop_last, "collate_fn": collate_fn}
        self.datamodule, self.labels = datamodule, labels
        self.partition = partition if isinstance(partition, Partition | None) else Stated(partition)
        self._late = ["sizes"]  # attributes that a new fit finds again
        if isinstance(self.partition, Stated):
            num_clients = len(self.partition.parts) if num_clients is None else num_clients
            self.__dict__.setdefault("client_names", self.partition.names)
        if num_clients is None and (self.partition is None or self.partition.column is None):
            raise ConfigurationError(
                "expected num_clients, a stated partition or Natural with a column, got none of them: set num_clients"
            )
        if num_clients is None:
            self._late += ["num_clients", *({"client_names"} - self.__dict__.keys())]
        else:
            check_at_least(1, num_clients=num_clients)
            self.num_clients = num_clients
            self.__dict__.setdefault("client_names", None)
        self.prepare_data_per_node = datamodule.prepare_data_per_node
        for name in (*LOADERS, *TRANSFER_HOOKS, *OWN_HOOKS):
            if is_overridden(name, datamodule) and not is_overridden(name, self):
                setattr(self, name, getattr(datamodule, name))

    @override
    def prepare_data(self) -> None:
        self.datamodule.trainer = self.trainer
        self.datamodule.prepare_data()

    @override
    def setup(self, stage: str) -> None:
        self.datamodule.trainer = self.trainer
        self.datamodule.setup(stage)
        if stage == "fit":
            for name in self._late:
                self.__dict__.pop(name, None)
            self._dealt = self._deal()

    @cached_property
    def num_clients(self) -> int:  # type: ignore[override]  # a column is known on loading only
        """N, the number of clients."""
        return len(self._dealt.parts)

    @cached_property
    def client_names(self) -> Sequence[str] | None:  # type: ignore[override]
        """The names of the clients; None for numbers alone."""
        return self._dealt.names

    @override
    def client_dataset(self, client: int) -> Dataset[Any]:
        examples: Any = self._dealt.examples
        rows: Any = self._dealt.parts[client]
        in_memory = gather(examples, rows[:0]) is not None  # others may want indices that are integers
        return Subset(examples, rows if in_memory else rows.tolist())

    @override
    def _client_parts(self) -> Parts:
        return self._dealt.parts

    @override
    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of examples per client and class; None if labels are unknown or are not classes."""
        return self._dealt.class_counts()

    @cached_property
    def _dealt(self) -> Dealt:  # also deals for code that reads the data without a Trainer, or before its setup
        self.datamodule.prepare_data()
        self.datamodule.setup("fit")
        return self._deal()

    def _deal(self) -> Dealt:
        examples, loader = training_data(self.datamodule)
        for name, value in self._given.items():
            setattr(self, name, loader[name] if value is None else value)
        draws = numpy_generator(self.seed, "partition")
        if self.partition is None or self.partition.column is None:
            return deal(examples, self.partition, self.num_clients, self.labels, draws)
        column = column_of(examples, self.partition.column, self.datamodule)
        if "num_clients" not in self._late:
            return deal(examples, self.partition, self.num_clients, self.labels, draws, column)
        each = Stated(column.tolist())  # a client for each value
        return deal(examples, each, len(each.parts), self.labels, draws)
