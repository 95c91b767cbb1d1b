"""PartitionedData: the training set of an ordinary LightningDataModule, dealt to clients."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.federated import FederatedDataModule
from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.datamodules.base.loaders import column_of, label_entry, read_labels, training_data
from fl_lightning.datamodules.base.settings import Apart, Unpack, check_taken
from fl_lightning.datamodules.base.source import Source, of_examples
from fl_lightning.datamodules.partition import DomainDirichlet, Partition, Stated
from fl_lightning.engine.federation.batches import Examples
from fl_lightning.engine.federation.clients import LOADERS, TRANSFER_HOOKS
from fl_lightning.errors import ConfigurationError, check_at_least
from fl_lightning.later import later

OWN_HOOKS = ("teardown", "on_exception", "state_dict", "load_state_dict")


class PartitionedData(LabelledData):
    """Deals the training set of an ordinary LightningDataModule to clients.

    The data module's other loaders, its transfer hooks, ``prepare_data`` and ``setup`` are used unchanged. Each fit
    deals the training set again, with the same seed. What is drawn for a proxy set or for validation comes of the
    training set, since the test set is the data module's own.

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
        proxy_source: set that the proxy examples are taken from; "train" alone.
        dealing: ``held_out``, ``proxy_per_class``, ``long_tail``, ``participation``, ``seed`` and the other arguments
            of :class:`LabelledData`.

    Attributes:
        client_names: the given names; by default, the values of a column or of a stated partition that gives the client
            of each example, else None.

    Raises:
        ConfigurationError: ``num_clients`` is missing or contradicts the partition; on loading, the training set is
            iterable, the partition does not fit, or there are no labels for what goes by labels.
    """

    @later(held_out=0.0, corruption=None, long_tail=1.0, proxy_per_class=0, proxy_source="train", proxy_long_tail=1.0)
    @later(proxy_balanced=False, proxy_batch_size=128, train_examples=None, test_examples=None)
    @later(validation_examples=None)
    def __init__(
        self,
        datamodule: LightningDataModule,
        num_clients: int | None = None,
        partition: Partition | Sequence[Any] | None = None,
        labels: Sequence[Any] | None = None,
        batch_size: int | None = None,
        drop_last: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        proxy_source: Literal["test", "train"] = "train",
        **dealing: Unpack[Apart],
    ) -> None:
        check_taken(type(self), dealing, "eval_batch_size")
        chosen = stated(partition)
        size = 32 if batch_size is None else batch_size
        super().__init__(
            num_clients=count_clients(num_clients, chosen),
            partition=chosen,
            proxy_source=proxy_source,
            batch_size=size,
            eval_batch_size=size,
            **dealing,
        )
        self._is_natural = names_clients(num_clients, chosen)
        self._given = {"batch_size": batch_size, "drop_last": drop_last, "collate_fn": collate_fn}
        self.datamodule, self._labels = datamodule, labels
        self._is_set_up = False
        # what a new fit finds again
        self._found = {
            "_dealt",
            "_training_set",
            "_read_columns",
            "_names",
            "sizes",
            "num_new",
            "num_clients",
            "client_names",
        }
        self._found -= self.__dict__.keys()
        self.prepare_data_per_node = datamodule.prepare_data_per_node
        self.leave_tests_out()
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
            self._is_set_up = True
            for name in self._found:
                self.__dict__.pop(name, None)
            super().setup(stage)

    @override
    def find_source(self, train: bool) -> Source | None:
        if not train:
            return None
        examples, loader = self._training_set
        for name, value in self._given.items():
            setattr(self, name, loader[name] if value is None else value)
        self.eval_batch_size, self.eval_collate = self.batch_size, self.collate_fn
        classes = self.read_classes(examples)
        return of_examples(examples, classes, self.label_entry(examples, classes) if self.corruption else None)

    def label_entry(self, examples: Examples, classes: Tensor | None) -> str | int | None:
        """Return the entry of an example that holds its class, by its number; None if it is none."""
        return None if self._labels is not None else label_entry(examples, classes)

    def read_classes(self, examples: Examples) -> Tensor | None:
        """Return the (n,) class of each training example; None if no option needs it and it is not stored.

        With ``labels`` that are groups, as for ``Natural``, these are the groups.

        Raises:
            ConfigurationError: an option needs classes, and there are none.
        """
        return read_labels(examples, self._labels, self._needing_classes())

    def _needing_classes(self) -> str | None:
        """Name what needs classes: the partition, or an option; None if nothing does."""
        if self.partition.by in ("labels", "domains") and not self._is_natural:
            return type(self.partition).__name__
        options = {
            "corruption": self.corruption is not None,
            "proxy_per_class": self.proxy_per_class > 0,
            "long_tail": self.long_tail > 1,
        }
        return next((name for name, is_used in options.items() if is_used), None)

    @override
    def groups(self) -> Tensor | None:
        if self._labels is None:
            raise ConfigurationError(
                f"{type(self.partition).__name__} keeps groups together: name a column, or give labels=, the group of "
                "each training example"
            )
        return self.read_classes(self._training_set[0])

    @override
    def domains(self, train: bool) -> Sequence[str] | None:
        column = self.partition.column if isinstance(self.partition, DomainDirichlet) else None
        return self.column(column).tolist() if train and column else None

    @override
    def column(self, name: str) -> NDArray[Any]:
        """Return the integers or texts (n,) of a column of the training set, which is read once for a fit."""
        if name not in self._read_columns:
            self._read_columns[name] = column_of(self._training_set[0], name, self.datamodule)
        return self._read_columns[name]

    @cached_property
    def _read_columns(self) -> dict[str, NDArray[Any]]:
        return {}

    @cached_property
    def _training_set(self) -> tuple[Examples, dict[str, Any]]:
        """The training set and how its loader makes batches; also for code that reads the data without a Trainer."""
        if not self._is_set_up:
            self.datamodule.prepare_data()
            self.datamodule.setup("fit")
        return training_data(self.datamodule)


FederatedDataModule.ordinary = PartitionedData


def stated(partition: Partition | Sequence[Any] | None) -> Partition | None:
    """Return a partition, which a list may state; see :class:`PartitionedData`."""
    return partition if partition is None or isinstance(partition, Partition) else Stated(partition)


def names_clients(num_clients: int | None, partition: Partition | None) -> bool:
    """Tell whether each value of the partition's column is a client."""
    if num_clients is not None or partition is None or isinstance(partition, DomainDirichlet):
        return False
    return partition.column is not None


def count_clients(num_clients: int | None, partition: Partition | None) -> int:
    """Return the number of clients to deal to; 1 where a column will tell.

    Raises:
        ConfigurationError: nothing tells how many clients there are, or two things do.
    """
    if num_clients is not None:
        if isinstance(partition, DomainDirichlet):
            raise ConfigurationError(
                f"DomainDirichlet sets the number of clients, got num_clients={num_clients}, too: leave it out"
            )
        check_at_least(1, num_clients=num_clients)
        return num_clients
    if isinstance(partition, Stated):
        return len(partition.parts)
    if partition is not None and partition.column is not None:
        return 1
    raise ConfigurationError(
        "expected num_clients, a stated partition, or Natural or DomainDirichlet with a column, got none of them: set "
        "num_clients"
    )
