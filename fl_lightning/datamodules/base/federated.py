"""FederatedDataModule: the base class of all data modules."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Never

from lightning.pytorch import LightningDataModule

from fl_lightning.datamodules.base.loaders import Loaders
from fl_lightning.datamodules.base.settings import Partitioned, Unpack
from fl_lightning.datamodules.cohorts.availability import Availability
from fl_lightning.datamodules.cohorts.sampling import UniformSampler
from fl_lightning.engine.federation.cohorts import ClientSampler
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.errors import ConfigurationError, check_at_least


class FederatedDataModule(FederatedData):
    """Holds the data of ``num_clients`` clients. Subclasses define ``num_clients`` and :meth:`client_dataset`.

    The Trainer's training batches are the client ids of each round's cohort; the batches on which a client trains come
    from :meth:`client_batches`. A client without data is never drawn. A subclass with clients that never train sets
    ``num_new`` to their number; their own numbers follow those of the others.

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

    Attributes:
        places: names of the arguments that say where a machine has its data (a folder, a file, a database), which may
            differ between the machines of a federation. A subclass with such arguments names them.

    Raises:
        ConfigurationError: ``participation`` is outside its range, ``batch_size`` or ``clients_per_batch`` is less than
            1, ``num_workers`` is less than 0, or ``client_names`` are given to a subclass whose names are a property;
            when training begins, ``client_names`` are not N different names.
    """

    places: ClassVar[Sequence[str]] = ()
    ordinary: ClassVar[Callable[..., "FederatedDataModule"]]
    """The class that deals an ordinary data module: :class:`PartitionedData`, which is built on this one."""

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
        **unknown: Never,
    ) -> None:
        super().__init__()
        if unknown:
            raise ConfigurationError(f"{type(self).__name__} has no argument {', '.join(unknown)}: leave it out")
        check_at_least(1, batch_size=batch_size, clients_per_batch=clients_per_batch)
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
        if client_names is not None:
            try:
                self.client_names = client_names
            except AttributeError:
                raise ConfigurationError(
                    f"{type(self).__name__} names its clients itself, got client_names, too: leave client_names out"
                ) from None

    @staticmethod
    def from_datamodule(
        datamodule: LightningDataModule,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **settings: Unpack[Partitioned],
    ) -> "FederatedDataModule":
        """Make an ordinary LightningDataModule federated.

        Args:
            datamodule: the data module, whose training set is dealt to the clients.
            batch_size: number of examples in a batch; by default that of the data module's training loader.
            collate_fn: function that makes a batch of examples; by default that of the data module's training loader.
            settings: ``num_clients``, ``partition`` and the other arguments of :class:`PartitionedData`.

        Returns:
            A :class:`PartitionedData`.
        """
        return FederatedDataModule.ordinary(datamodule, batch_size=batch_size, collate_fn=collate_fn, **settings)

    @staticmethod
    def from_loaders(
        train: Any,
        val: Any = None,
        test: Any = None,
        predict: Any = None,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **settings: Unpack[Partitioned],
    ) -> "FederatedDataModule":
        """Make DataLoaders or datasets federated.

        Args:
            train: DataLoader or dataset, whose examples are dealt to the clients.
            val: DataLoader, several of them, or dataset to validate on.
            test: data to test on, like ``val``.
            predict: data to predict on, like ``val``.
            batch_size: number of examples in a batch; by default that of the loader ``train``, and 32 for datasets.
            collate_fn: function that makes a batch of examples; by default that of the loader ``train``.
            settings: ``num_clients``, ``partition`` and the other arguments of :class:`PartitionedData`.

        Returns:
            A :class:`PartitionedData`.
        """
        loaders = Loaders(train, batch_size or 32, collate_fn, val=val, test=test, predict=predict)
        return FederatedDataModule.ordinary(loaders, batch_size=batch_size, collate_fn=collate_fn, **settings)

    def missing(self) -> str | None:
        """Return one line on which data are missing and how to get them; None if the data are there, or not known.

        The method looks for files; it neither reads nor downloads them. ``prepare_data`` downloads what can be
        downloaded, and raises an error for the rest.
        """
        return None

    def downloads(self) -> bool:
        """Tell whether ``prepare_data`` downloads the data that :meth:`missing` names."""
        return False
