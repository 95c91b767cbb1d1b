"""FlowerDatasets: the partitions of Flower Datasets as clients."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from fl_lightning.datamodules.base.dealt import Dealt
from fl_lightning.datamodules.base.federated import FederatedDataModule
from fl_lightning.datamodules.base.loaders import Loaders
from fl_lightning.datamodules.base.settings import Stacked, Unpack
from fl_lightning.datamodules.changes.augmentation import Augmentation
from fl_lightning.datamodules.partition.parts import Parts
from fl_lightning.datamodules.tables.columns import ColumnImages, column_of, image_columns, prepared
from fl_lightning.errors import ConfigurationError


class FlowerDatasets(FederatedDataModule):
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
        batch_size: number of examples in a batch, for evaluation, too.
        collate_fn: as for :class:`FederatedDataModule`, for evaluation, too.
        channels, image_size, mean, std, normalize, augment, memory_gib: as for :class:`HuggingFace`.
        federation: ``participation``, ``seed`` and the other arguments of :class:`FederatedDataModule`.

    Raises:
        ConfigurationError: ``source`` is neither of the two; on loading, the split has no partitioner, or a column is
            missing.
    """

    by_example = True

    def __init__(
        self,
        source: Any,
        split: str = "train",
        test: Any = None,
        columns: list[str] | None = None,
        label: str = "label",
        batch_size: int = 32,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        channels: Literal[1, 3] | None = None,
        image_size: int | tuple[int, int] | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        normalize: bool | tuple[float, float] = True,
        augment: Sequence[Augmentation] | Augmentation | None = None,
        memory_gib: float = 4.0,
        **federation: Unpack[Stacked],
    ) -> None:
        super().__init__(batch_size=batch_size, collate_fn=collate_fn, **federation)
        if not hasattr(source, "load_partition") or (isinstance(test, str) and not hasattr(source, "load_split")):
            raise ConfigurationError(
                "expected a FederatedDataset, or a Partitioner and a test set, of flwr_datasets (pip install "
                f"'fl-lightning[flower-datasets]'), got {type(source).__name__} and test={str(test)[:40]}: give either"
            )
        self.source, self.split, self.test, self.columns, self.label = source, split, test, columns, label
        self._settings = (channels, image_size, mean, std, normalize, augment, memory_gib)
        if test is not None:
            self.val_dataloader = self.test_dataloader = self._test_loader  # type: ignore[method-assign]

    @cached_property
    def num_clients(self) -> int:  # type: ignore[override]  # known on loading only
        """N, the number of partitions."""
        return int(self._partitioner.num_partitions)

    @cached_property
    def client_names(self) -> list[str] | None:  # type: ignore[override]  # known on loading only
        """The natural id of each partition, as text; None for a partitioner without natural ids."""
        partitions = range(self.num_clients)  # a NaturalIdPartitioner finds its ids when it counts its partitions
        ids = getattr(self._partitioner, "partition_id_to_natural_id", None)
        return None if ids is None else [str(ids[k]) for k in partitions]

    @override
    def prepare_data(self) -> None:
        self._partitioner  # noqa: B018  # a FederatedDataset downloads here

    @override
    def client_dataset(self, client: int) -> Any:
        if self._dealt is not None:
            return super().client_dataset(client)
        return prepared(self._partitioner.load_partition(client), self.columns)

    @override
    def client_num_samples(self, client: int) -> int:
        return len(self._partitioner.load_partition(client))

    @override
    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of examples per client and class; None if ``label`` is no column of integers."""
        parts = [self._partitioner.load_partition(client) for client in range(self.num_clients)]
        if self.label not in parts[0].column_names:
            return None
        labels = [torch.from_numpy(column_of(part, self.label)) for part in parts]
        for classes in labels:  # of one client
            if classes.is_floating_point() or classes.ndim != 1 or (len(classes) and classes.min() < 0):
                return None
        most = max(int(classes.max()) + 1 for classes in labels if len(classes))
        return torch.stack([classes.long().bincount(minlength=most) for classes in labels])

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Turn images into inputs as :meth:`ImageData.on_after_batch_transfer` does; return other batches unchanged."""
        if self._images is None:
            return batch
        self._images.trainer = self.trainer
        return self._images.on_after_batch_transfer(batch, dataloader_idx)

    @cached_property
    def num_classes(self) -> int:
        """C, the number of classes of images; other data have no such attribute."""
        if self._images is None:
            raise AttributeError("num_classes")
        return self._images.num_classes

    @cached_property
    def _images(self) -> ColumnImages | None:
        columns = image_columns(self._partitioner.load_partition(0), self.columns, self.label)
        if columns is None:
            return None
        parts = [self._partitioner.load_partition(client) for client in range(self.num_clients)]
        splits = {"train": parts} | ({} if self.test is None else {"test": self._test_set()})
        return ColumnImages(splits, columns, self.batch_size, self.collate_fn, *self._settings)

    @cached_property
    def _dealt(self) -> Dealt | None:
        if self._images is None:
            return None
        examples: Any = self._images.sets["train"]
        self.collate_fn = self._images.collate("train")
        parts = Parts(torch.arange(len(examples)), self.sizes)
        return Dealt(examples=examples, parts=parts, classes=None)

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

    def _test_set(self) -> Any:
        return self.source.load_split(self.test) if isinstance(self.test, str) else self.test

    def _test_loader(self) -> DataLoader[Any]:
        loaders: Any = self._images
        if loaders is None:
            test = prepared(self._test_set(), self.columns)
            loaders = Loaders(test, self.batch_size, self.collate_fn, test=test)
        loader: DataLoader[Any] = loaders.test_dataloader()
        return loader
