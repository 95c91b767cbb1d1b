"""FlowerDatasets: the partitions of Flower Datasets as clients."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset
from typing_extensions import override

from fl_lightning.datamodules.base.dealt import new_last
from fl_lightning.datamodules.base.settings import Columns, Unpack, check_taken
from fl_lightning.datamodules.base.source import Source
from fl_lightning.datamodules.partition.steps.parts import Parts
from fl_lightning.datamodules.tables.column_data import ColumnData
from fl_lightning.datamodules.tables.columns import ColumnImages, check_columns, image_columns, prepared
from fl_lightning.datamodules.tables.values import check_class_names, check_examples, column_of
from fl_lightning.errors import ConfigurationError, of_library


class FlowerDatasets(ColumnData):
    """The partitions of a ``flwr_datasets`` partitioner, or of a ``FederatedDataset``: partition k is client k.

    Examples and the settings of images are as for :class:`HuggingFace`. The partitioner's own seed governs the
    partition. The natural ids of a ``NaturalIdPartitioner`` are the clients' names.

    Args:
        source: ``FederatedDataset``, which loads its data set in ``prepare_data``, or ``Partitioner`` with a data set.
        split: name of the split of a FederatedDataset that is partitioned.
        test: ``datasets.Dataset`` to validate and test on; or the name of a split of a FederatedDataset.
        columns: as for :class:`HuggingFace`.
        label: name of the column of classes, for images and for the overview of the clients; ignored if there is no
            such column.
        settings: ``batch_size``, ``image_size`` and the other arguments of :class:`ColumnData`, and ``participation``,
            ``seed``, ``held_out`` and the others of :class:`LabelledData`.

    Raises:
        ConfigurationError: ``source`` is neither of the two; on loading, the split has no partitioner, which cannot
            divide the data set, a column is missing, or examples are refused as by :class:`HuggingFace`.
    """

    def __init__(
        self,
        source: Any,
        split: str = "train",
        test: Any = None,
        columns: list[str] | None = None,
        label: str = "label",
        **settings: Unpack[Columns],
    ) -> None:
        check_taken(type(self), settings, "num_clients", "partition")
        super().__init__(num_clients=1, partition=None, **settings)
        if not hasattr(source, "load_partition") or (isinstance(test, str) and not hasattr(source, "load_split")):
            raise ConfigurationError(
                "expected a FederatedDataset, or a Partitioner and a test set, of flwr_datasets (pip install "
                f"'fl-lightning[flower-datasets]'), got {type(source).__name__} and test={str(test)[:40]}: give either"
            )
        self.source, self.split, self.test, self.columns, self.label = source, split, test, columns, label
        if test is None:
            self.leave_tests_out()

    @cached_property
    def _num_dealt(self) -> int:
        """Number of partitions, those of clients that never train included."""
        with self._divided():
            return int(self._partitioner.num_partitions)

    @override
    def _known_names(self) -> list[str] | None:
        """The natural id of each partition, as text; None for a partitioner without natural ids."""
        count = self._num_dealt  # a NaturalIdPartitioner finds its ids when it counts its partitions
        ids = getattr(self._partitioner, "partition_id_to_natural_id", None)
        return None if ids is None else [str(ids[partition]) for partition in range(count)]

    @override
    def prepare_data(self) -> None:
        self._partitioner  # noqa: B018  # a FederatedDataset downloads here

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]  # known on loading only
        """C, the number of classes of images; other data have no such attribute."""
        if self.images is None:
            raise AttributeError("num_classes")
        return self.images.num_classes

    @cached_property
    def _parts(self) -> list[Any]:
        """The partitions, as Hugging Face data sets."""
        clients = range(self._num_dealt)
        with self._divided():
            return [self._partitioner.load_partition(client) for client in clients]

    @contextmanager
    def _divided(self) -> Iterator[None]:
        """Turn a partitioner's error about the data set, such as about clients without a name, into one line."""
        try:
            yield
        except Exception as error:
            if not of_library(error):
                raise
            reason = " ".join(str(error).split())[:100]
            raise ConfigurationError(
                f"expected a data set that {type(self._partitioner).__name__} can divide, got {type(error).__name__}: "
                f"{reason}: give each example one integer or text in the partitioner's column, or change its arguments"
            ) from error

    @cached_property
    def images(self) -> ColumnImages | None:  # type: ignore[override]  # known on loading only
        """The images of all partitions and of the test set; None for other data."""
        columns = image_columns(self._parts[0], self.columns, self.label)
        if columns is None:
            return None
        splits = {"train": self._parts} | ({} if self._test_set is None else {"test": self._test_set})
        return self.decoded(splits, columns)

    @override
    def find_source(self, train: bool) -> Source | None:
        if not train and self._test_set is None:
            return None
        self._check_sets()
        name = "train" if train else "test"
        parts = self._parts if train else [self._test_set]
        if self.images is not None:
            return self.source_of(self.images.split(name), self._classes(parts), 1, train)
        examples: Any = ConcatDataset([prepared(part, self.columns) for part in parts])
        label = self.columns.index(self.label) if self.columns and self.label in self.columns else self.label
        return self.source_of(examples, self._classes(parts), label, train)

    @override
    def _given_parts(self, count: int) -> Parts:
        sizes = torch.tensor([len(part) for part in self._parts])
        parts = Parts(torch.arange(count), sizes)
        return parts.in_order(new_last(len(parts), self.new_clients, self.seed)) if self.num_new else parts

    def _check_sets(self) -> None:
        train = self._parts[0]
        columns = self.columns or train.column_names
        sets = [(part, "train") for part in self._parts]
        if self._test_set is not None:
            check_columns(self._test_set, (), "test")
            check_class_names(train.features, self._test_set.features, [*columns, self.label], "test set")
            sets.append((self._test_set, "test"))
        for part, name in sets if self.images is None else ():
            check_examples(train, part, columns, self.label, name, self.eval_collate is None)

    def _classes(self, parts: Sequence[Any]) -> Tensor | None:
        """Return the (n,) int64 class of each example; None if ``label`` is no column of classes."""
        if any(self.label not in part.column_names for part in parts):
            return None
        columns = [column_of(part, self.label) for part in parts]
        if any(column.ndim != 1 for column in columns):
            return None
        classes = np.concatenate(columns)
        if classes.dtype.kind not in "iub" or (len(classes) and classes.min() < 0):
            return None
        return torch.from_numpy(classes.astype(np.int64))

    @cached_property
    def _partitioner(self) -> Any:
        if not hasattr(self.source, "partitioners"):
            return self.source
        partitioners = self.source.partitioners
        if self.split not in partitioners:
            raise ConfigurationError(
                f"expected split to have a partitioner, got {self.split}: choose among {', '.join(partitioners)}"
            )
        return partitioners[self.split]

    @cached_property
    def _test_set(self) -> Any:
        """The data set to validate and test on; None without one."""
        return self.source.load_split(self.test) if isinstance(self.test, str) else self.test
