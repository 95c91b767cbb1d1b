"""FederatedDataModule: the base class of all data modules. PartitionedData: an ordinary data set, dealt to clients."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Never

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from fl_lightning.datamodules.base.dealt import Dealt, check_held_out, count_new, hold_out, new_last
from fl_lightning.datamodules.base.loaders import Loaders, column_of, deal, training_data
from fl_lightning.datamodules.base.settings import Draws, Partitioned, Unpack
from fl_lightning.datamodules.cohorts.availability import Availability
from fl_lightning.datamodules.cohorts.sampling import UniformSampler
from fl_lightning.datamodules.partition import IID, DomainDirichlet, Partition, Stated
from fl_lightning.datamodules.partition.steps.parts import Parts
from fl_lightning.engine.federation.batches import Examples
from fl_lightning.engine.federation.clients import LOADERS, TRANSFER_HOOKS
from fl_lightning.engine.federation.cohorts import ClientSampler
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.errors import ConfigurationError, check_at_least
from fl_lightning.later import later

OWN_HOOKS = ("teardown", "on_exception", "state_dict", "load_state_dict")


class FederatedDataModule(FederatedData):
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
        new_clients: share of the clients, in [0, 1), that never train, drawn with the run's seed and rounded to whole
            clients, at least one: ``PersonalEvaluation`` measures how the models serve these. Their numbers follow
            those of the others, and ``num_clients``, ``participation`` and sizes are of the others alone. For data
            that are dealt to clients; a subclass with clients of its own sets ``num_new``.

    Attributes:
        places: names of the arguments that say where a machine has its data (a folder, a file, a database), which may
            differ between the machines of a federation. A subclass with such arguments names them.

    Raises:
        ConfigurationError: ``participation`` is outside its range, ``batch_size`` or ``clients_per_batch`` is less than
            1, ``num_workers`` is less than 0, or ``client_names`` are given to a subclass whose names are a property;
            when training begins, ``client_names`` are not N different names.
    """

    places: ClassVar[Sequence[str]] = ()

    @later(new_clients=0.0)
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
        new_clients: float = 0.0,
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
        if not 0 <= new_clients < 1:  # also refuses nan
            raise ConfigurationError(f"new_clients must be in [0, 1), the share of the clients, got {new_clients}")
        if new_clients and type(self)._dealt is FederatedDataModule._dealt:
            raise ConfigurationError(
                f"new_clients draws among the clients to which a training set is dealt, but {type(self).__name__} has "
                "clients of its own: leave new_clients out, and set num_new to the number of clients that never train, "
                "whose numbers follow those of the others"
            )
        self.new_clients = new_clients
        if client_names is not None:
            if new_clients:
                client_names = [client_names[client] for client in new_last(len(client_names), new_clients, seed)]
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
    ) -> "PartitionedData":
        """Make an ordinary LightningDataModule federated.

        Args:
            datamodule: the data module, whose training set is dealt to the clients.
            batch_size: number of examples in a batch; by default that of the data module's training loader.
            collate_fn: function that makes a batch of examples; by default that of the data module's training loader.
            settings: ``num_clients``, ``partition`` and the other arguments of :class:`PartitionedData`.
        """
        return PartitionedData(datamodule, batch_size=batch_size, collate_fn=collate_fn, **settings)

    @staticmethod
    def from_loaders(
        train: Any,
        val: Any = None,
        test: Any = None,
        predict: Any = None,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **settings: Unpack[Partitioned],
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

    def setup(self, stage: str) -> None:
        """Load and deal the data on the first call, if there is one training set to deal; later calls do nothing."""
        self._dealt  # noqa: B018  # loads

    @cached_property
    def _dealt(self) -> Dealt | None:
        """The training set that is dealt to the clients; None for clients with data sets of their own."""
        return None

    @cached_property
    def num_new(self) -> int:  # type: ignore[override]  # known on loading only
        """Number of clients that never train."""
        return 0 if self._dealt is None else self._dealt.num_new

    @override
    def client_dataset(self, client: int) -> Dataset[Any]:
        return super().client_dataset(client) if self._dealt is None else self._dealt.dataset(client)

    @override
    def client_num_samples(self, client: int) -> int:
        return super().client_num_samples(client) if self._dealt is None else int(self._dealt.parts.sizes[client])

    @cached_property
    @override
    def sizes(self) -> Tensor:
        own = type(self).client_num_samples is not FederatedDataModule.client_num_samples
        return super().sizes if own or self._dealt is None else self._dealt.trained.sizes

    @override
    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of training examples per client and class, or None for data without classes."""
        counts = None if self._dealt is None else self._dealt.class_counts()
        return None if counts is None else counts[: self.num_clients]

    @override
    def new_class_counts(self) -> Tensor | None:
        counts = None if self._dealt is None else self._dealt.class_counts()
        return None if counts is None else counts[self.num_clients :]


class PartitionedData(FederatedDataModule):
    """Deals the training set of an ordinary LightningDataModule to clients.

    The data module's other loaders, its transfer hooks, ``prepare_data`` and ``setup`` are used unchanged. Each fit
    deals the training set again, with the same seed.

    Args:
        datamodule: the data module; its ``train_dataloader`` returns one DataLoader over a map-style dataset.
        num_clients: N, the number of clients; leave it out with a stated partition or ``DomainDirichlet``, which set N.
            With ``Natural(column)``, each value of the column is a client by default.
        partition: a :class:`Partition`; or a stated partition: either one list of example indices for each client, or
            one integer or string for each example, which stands for its client. The distinct values in sorted order are
            the clients 0, 1, … By default, random parts whose sizes differ by at most one.
        labels: (n,) class (for ``Natural``, group) of each training example, integers or strings. By default, the
            second tensor of a TensorDataset, the dataset's ``targets`` or ``labels``, or the second entry or the entry
            ``label`` of its examples.
        batch_size: number of examples in a client's batch; by default that of ``train_dataloader``.
        drop_last: as for :class:`FederatedDataModule`; by default that of ``train_dataloader``.
        collate_fn: as for :class:`FederatedDataModule`; by default that of ``train_dataloader``.
        held_out: share of each client's examples, in [0, 1), that the client keeps back from training for evaluation;
            drawn with the run's seed and rounded to whole examples; at least one example stays in training.
        federation: ``participation``, ``seed`` and the other arguments of :class:`FederatedDataModule`.

    Attributes:
        client_names: the given names; by default, the values of a column or of a stated partition that gives the client
            of each example, else None.

    Raises:
        ConfigurationError: ``num_clients`` is missing or contradicts the partition; on loading, the training set is
            iterable, the partition does not fit, or there are no labels for a partition by label.
    """

    @later(held_out=0.0)
    def __init__(
        self,
        datamodule: LightningDataModule,
        num_clients: int | None = None,
        partition: Partition | Sequence[Any] | None = None,
        labels: Sequence[Any] | None = None,
        batch_size: int | None = None,
        drop_last: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        held_out: float = 0.0,
        **federation: Unpack[Draws],
    ) -> None:
        super().__init__(batch_size=32 if batch_size is None else batch_size, **federation)
        check_held_out(held_out)
        self.held_out = held_out
        self._given = {"batch_size": batch_size, "drop_last": drop_last, "collate_fn": collate_fn}
        self.datamodule, self.labels = datamodule, labels
        chosen = IID() if partition is None else partition
        self.partition = chosen if isinstance(chosen, Partition) else Stated(chosen)
        self._late = ["sizes", "num_new"]  # attributes that a new fit finds again
        if num_clients is not None and isinstance(self.partition, DomainDirichlet):
            raise ConfigurationError(
                f"DomainDirichlet sets the number of clients, got num_clients={num_clients}, too: leave it out"
            )
        if num_clients is None and isinstance(self.partition, Stated):
            num_clients = len(self.partition.parts)
        if num_clients is not None:
            check_at_least(1, num_clients=num_clients)
            self._num_dealt = num_clients
            self.num_clients = num_clients - count_new(num_clients, self.new_clients)
        elif self.partition.column is not None:
            self._late += ["num_clients", *({"client_names"} - self.__dict__.keys())]
        else:
            raise ConfigurationError(
                "expected num_clients, a stated partition, or Natural or DomainDirichlet with a column, got none of "
                "them: set num_clients"
            )
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
        return len(self._dealt.trained)

    @cached_property
    def client_names(self) -> Sequence[str] | None:  # type: ignore[override]
        """The names of the clients; None for numbers alone."""
        return self._dealt.names

    @cached_property
    def _dealt(self) -> Dealt:  # also deals for code that reads the data without a Trainer, or before its setup
        self.datamodule.prepare_data()
        self.datamodule.setup("fit")
        return self._deal()

    @override
    def held_out_batches(self, client: int) -> Iterator[Any]:
        """Return the client's own examples for its evaluation, in batches, in order."""
        return self._dealt.kept_batches(client, self.batch_size, self.collate_fn)

    def own_tests(self, dealt: Dealt) -> tuple[Examples, Parts] | None:
        """Return a test set and the rows of it that are each client's own; None if the data have no such rows."""
        return None

    def _deal(self) -> Dealt:
        dealt = self._deal_training_set().with_new(self.new_clients, self.seed)
        if self.held_out:
            parts, kept = hold_out(dealt.parts, self.held_out, self.seed)
            return replace(dealt, parts=parts, kept=(dealt.examples, kept))
        return replace(dealt, kept=self.own_tests(dealt))

    def _deal_training_set(self) -> Dealt:
        examples, loader = training_data(self.datamodule)
        for name, value in self._given.items():
            setattr(self, name, loader[name] if value is None else value)
        if (column := self.partition.column) is None:
            return deal(examples, self.partition, self._num_dealt, self.labels, None, self.seed)
        values = self._column(examples, column)
        if isinstance(self.partition, DomainDirichlet):
            names = self.partition.names(values.tolist())
            dealt = deal(examples, self.partition, len(names), self.labels, values, self.seed)
            return replace(dealt, names=names)
        if "num_clients" not in self._late:
            return deal(examples, self.partition, self._num_dealt, self.labels, values, self.seed)
        by_value = Stated(values.tolist())  # a client for each value
        return deal(examples, by_value, len(by_value.parts), self.labels, None, self.seed)

    def _column(self, examples: Examples, name: str) -> NDArray[Any]:
        """Return the integers or texts (n,) of a column of the training set."""
        return column_of(examples, name, self.datamodule)
