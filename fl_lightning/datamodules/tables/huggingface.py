"""HuggingFace: a Hugging Face data set, dealt by one of its columns or by a partition."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset
from typing_extensions import override

from fl_lightning.datamodules.base.domains import left_out_names
from fl_lightning.datamodules.base.loaders import Loaders, as_groups
from fl_lightning.datamodules.base.partitioned import PartitionedData
from fl_lightning.datamodules.base.settings import Stacked, Unpack
from fl_lightning.datamodules.base.source import Source, of_examples
from fl_lightning.datamodules.changes.augmentation import Augmentation
from fl_lightning.datamodules.files.hub import parquet_features, read_splits
from fl_lightning.datamodules.partition import DomainDirichlet, Natural, Partition
from fl_lightning.datamodules.tables.columns import (
    ColumnImages,
    LazyImages,
    OfColumns,
    check_columns,
    check_no_images,
    image_columns,
    prepared,
)
from fl_lightning.datamodules.tables.rows.owners import owners_of
from fl_lightning.datamodules.tables.rows.splits import choose_splits, leave_unlabelled_out, move_to_test
from fl_lightning.datamodules.tables.tokens import tokenized
from fl_lightning.datamodules.tables.values import check_class_names, check_examples, classes_of, column_of, groups_of
from fl_lightning.engine.federation.batches import Examples
from fl_lightning.errors import ConfigurationError
from fl_lightning.later import later


class HuggingFace(OfColumns, PartitionedData):  # type: ignore[override]  # measured is known on loading only
    """A Hugging Face data set, dealt to the clients by a column or a partition.

    Where one column holds images, examples are (image, class): images are decoded once into bytes (C, H, W) in memory,
    turned by their EXIF orientation, scaled until they cover ``image_size`` (bilinear, antialiased), and their middle
    is cut out. Batches ``[images, labels]`` become inputs on the device as those of :class:`ImageData`. With
    ``tokenizer``, examples are (tokens, class), or (tokens,) without classes. All other examples are dicts of tensors.
    A data set with a format or a transform of its own is read as it is.

    Args:
        train: ``datasets.Dataset`` with the training examples; a ``datasets.DatasetDict``; a folder that
            ``save_to_disk`` wrote; a folder with the files of each split, as the hub keeps them (``train*.parquet``,
            ``test/*.parquet``); a parquet file; or the name of a data set on the hub (``owner/name``), which is
            downloaded to the cache of ``datasets``. The split ``train`` is the training set, ``validation`` the
            validation set and ``test`` the test set (if one of the last two is missing, or no class of the test set is
            known, the other serves as both).
        test: ``datasets.Dataset`` to validate and test on; not together with splits of these names.
        client: name of the column that holds each example's client (writer, user) and is left out of the examples; each
            distinct value is one client, in sorted order, and names the client (``client_names``). If the test set has
            the column, too, and ``held_out`` is 0, each client evaluates on its own test examples; a warning counts
            those of others.
        columns: names of columns: examples become tuples of these columns, undecoded; by default, dicts of all columns,
            or images and classes.
        label: name of the column of classes, for images and for a partition by label; if there is no such column, the
            only column of type ``ClassLabel`` holds the classes of images.
        num_clients: N, the number of clients; only without ``client``.
        partition: as for :class:`PartitionedData`; not together with ``client``.
        batch_size: number of examples in a batch, for evaluation, too.
        collate_fn: as for :class:`FederatedDataModule`, for evaluation, too.
        subset: name of the part of a data set on the hub that has several (``cropped_digits`` of SVHN).
        domain: name of the column that holds each example's domain (photo, sketch); each domain is a client, too,
            unless there is ``client`` or ``partition``, such as ``DomainDirichlet``. :meth:`domain_batches` gives the
            test examples of each domain, if the test set has the column.
        leave_out: domains, as texts, that do not train: their training examples become test examples.
        test_share: share in [0, 1) of the training examples of each client and domain that become test examples, for
            data without a test set; drawn with the run's seed, rounded to whole examples.
        channels: 3, where grey images become colour, or 1, where colour images become grey; by default 1 if all
            training images are grey.
        image_size: height and width in pixels, or one number for both; by default the commonest size in the training
            set.
        mean: mean of each channel of inputs in [0, 1]; by default measured, as ``std``, on the examples that train.
        std: standard deviation of each channel, above 0.
        normalize: as for :class:`ImageData`, for images only.
        augment: as for :class:`ImageData`, for images only.
        memory_gib: largest number of GiB that decoded images may take; larger sets are decoded example by example,
            whenever they are used, with the same values.
        tokenizer: name on the hub, or folder, of a language model whose tokenizer cuts texts into tokens, once, in
            memory: int64 (``length``,). ``columns`` may name the column of texts, and that of classes.
        length: number of tokens of a text: a longer one is cut off, a shorter one filled up with -100, which is no
            token. A text ends with the token that the tokenizer ends texts with, if there is one.
        proxy_source: as for :class:`LabelledData`; "test" needs ``label`` to name a column of type ``ClassLabel``.
        dealing: ``participation``, ``seed``, ``held_out``, ``proxy_per_class`` and the other arguments of
            :class:`LabelledData`.

    Attributes:
        num_classes: C, the number of classes of images, or of a column ``label`` of type ``ClassLabel``.

    Raises:
        ConfigurationError: the data set is streamed or cannot be read, a column is missing, or an argument is outside
            its range; two sets number their classes differently, or hold columns of different types; examples lack a
            client, a domain, a number that would become nan, or a class; on loading, an image cannot be decoded.
    """

    by_example = True
    places = ("train",)
    from_statistics = ("mean", "std")

    @later(subset=None, domain=None, leave_out=(), test_share=0.0, tokenizer=None, length=128)
    @later(corruption=None, long_tail=1.0, proxy_per_class=0, proxy_source="test", proxy_long_tail=1.0)
    @later(proxy_balanced=False, proxy_batch_size=128, train_examples=None, test_examples=None)
    @later(validation_examples=None, held_out=0.0)
    @later(channels=None, image_size=None, mean=None, std=None, normalize=True, augment=None, memory_gib=4.0)
    def __init__(
        self,
        train: Any,
        test: Any = None,
        client: str | None = None,
        columns: list[str] | None = None,
        label: str = "label",
        num_clients: int | None = None,
        partition: Partition | Sequence[Any] | None = None,
        batch_size: int = 32,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        subset: str | None = None,
        domain: str | None = None,
        leave_out: Sequence[str] = (),
        test_share: float = 0.0,
        channels: Literal[1, 3] | None = None,
        image_size: int | tuple[int, int] | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        normalize: bool | tuple[float, float] = True,
        augment: Sequence[Augmentation] | Augmentation | None = None,
        memory_gib: float = 4.0,
        tokenizer: str | None = None,
        length: int = 128,
        proxy_source: Literal["test", "train"] = "test",
        **dealing: Unpack[Stacked],
    ) -> None:
        splits = train if isinstance(train, Mapping) else {"train": train}
        if isinstance(train, str):
            splits = read_splits(train, subset)
            for file, features in parquet_features(train, subset).items():
                check_class_names(splits["train"].features, features, [*features], f"file {file}")
        sources = choose_splits(splits, test)
        own = [name for name in (client, domain) if name is not None]
        check_columns(sources["train"], [*(columns or ()), *own])
        leave_out = left_out_names(domain, leave_out)
        if client and partition is not None:
            raise ConfigurationError(f"expected client or partition, got both, with client={client}: leave one out")
        whole = sources["train"]
        pair = None if tokenizer else image_columns(whole, columns, label)
        if pair is not None:
            label = pair[1]
        read = columns or [name for name in whole.column_names if name not in own]
        for name, split in sources.items():
            check_columns(split, (), name)
            check_class_names(whole.features, split.features, [*read, label, *own], f"{name} set")
            if domain is not None and domain in split.column_names:
                groups_of(split, domain, name)
        if label in read:
            sources = leave_unlabelled_out(sources, label)
        if leave_out or test_share:
            sources = move_to_test(sources, own, domain, leave_out, test_share, dealing.get("seed", 0))
        if partition is None and num_clients is None:
            client = client or domain
        if isinstance(partition, DomainDirichlet) and partition.column is None:
            partition = copy(partition)
            partition.column = domain
        training = sources["train"]
        images = None
        if pair is None:
            check_no_images(channels=channels, image_size=image_size, mean=mean, std=std, augment=augment)
            if tokenizer:
                raw: dict[str, Any] = dict(tokenized(sources, tokenizer, length, columns, label, own))
            else:
                for name, split in sources.items():
                    check_examples(training, split, read, label, name, collate_fn is None)
                raw = {name: prepared(split, columns, own) for name, split in sources.items()}
            source: Any = Loaders(batch_size=batch_size, collate_fn=collate_fn, **raw)
        else:
            source = images = ColumnImages(
                sources,
                pair,
                batch_size,
                collate_fn,
                channels,
                image_size,
                mean,
                std,
                normalize,
                augment,
                memory_gib,
            )
        natural = Natural(client) if client else partition
        super().__init__(
            source, num_clients=num_clients, partition=natural, labels=None, proxy_source=proxy_source, **dealing
        )
        self.images, self._training, self._test = images, training, sources.get("test")
        self._client, self._label, self._columns = client, label, columns
        self._eval_collate = collate_fn
        self._known = np.unique(_owners_of(whole, client)).tolist() if client else []  # also those that do not train
        if self._test is not None:  # the loaders of what is dealt
            del self.test_dataloader
            if sources["val"] is self._test:
                self.__dict__.pop("val_dataloader", None)
        self.domain, self.leave_out, self.test_share = domain, leave_out, test_share
        if images is not None:
            images.trained = self.trained_rows
        classes: int | None = getattr(training.features.get(label), "num_classes", None)
        if images is not None:
            classes = images.num_classes
        if classes is not None:
            self.num_classes = classes

    @override
    def find_source(self, train: bool) -> Source | None:
        if train:
            source = super().find_source(train)
            self.eval_collate = self._eval_collate
            return source
        if self._test is None:
            return None
        tests: Any = self.images.split("test") if self.images else self.datamodule.test_dataloader().dataset
        return of_examples(tests, _class_numbers(self._test, self._label))

    @override
    def read_classes(self, examples: Examples) -> Tensor | None:
        classes = _class_numbers(self._training, self._label)
        if classes is not None:
            return classes
        values = _labels_of(self._training, self._label, self.partition)
        return None if values is None else torch.from_numpy(np.unique(values, return_inverse=True)[1])

    @override
    def groups(self) -> Tensor | None:
        """Return None: the groups of a natural partition are those of its column."""
        return None

    @override
    def label_entry(self, examples: Examples, classes: Tensor | None) -> str | int | None:
        if _class_numbers(self._training, self._label) is None:
            return None
        if self._columns:
            return self._columns.index(self._label)
        return 1 if isinstance(examples, TensorDataset | LazyImages) else self._label

    @override
    def clients(self, train: bool) -> Sequence[str] | None:
        if train or self._client is None:
            return super().clients(train)
        return self._test_owners

    @cached_property
    def _test_owners(self) -> Sequence[Any] | None:
        """The client of each test example, None for nobody's; a warning, which comes once, counts those of others."""
        if self._test is None or self._client is None or self._client not in self._test.column_names:
            return None
        owners = owners_of(column_of(self._test, self._client), self._known, self._client, may_be_none=True)
        names = [*map(str, self._known), None]
        return [names[owner] for owner in owners]

    @override
    def domains(self, train: bool) -> Sequence[Any] | None:
        split = self._training if train else self._test
        if self.domain is None or split is None or self.domain not in split.column_names:
            return None
        values: list[Any] = column_of(split, self.domain).tolist()
        return values

    @override
    def column(self, name: str) -> NDArray[Any]:
        values: NDArray[Any] = _owners_of(self._training, name)
        return values


def _owners_of(training: Any, name: str) -> Any:
    """Read the column (n,) of integers or texts that gives the client or the domain of each training example."""
    return as_groups(groups_of(training, name, "train"), name)


def _class_numbers(split: Any, name: str) -> Tensor | None:
    """Return the class (n,) of each example, in a column of type ``ClassLabel``; None for other columns."""
    count = getattr(split.features.get(name), "num_classes", None)
    if count is None:
        return None
    values = column_of(split, name)
    if values.ndim != 1 or values.dtype.kind not in "iu" or values.min(initial=0) < 0:
        return None
    return torch.from_numpy(values.astype(np.int64))


def _labels_of(training: Any, name: str, partition: Any) -> Any:
    """Read the class (n,) of each training example, for partitions and for the overview of the clients.

    Returns:
        Integers, truth values or texts; None if the column, which no partition needs, holds others, or is not there.
    """
    if name not in training.column_names:
        return None
    is_needed = isinstance(partition, Partition) and partition.by in ("labels", "domains")
    count = getattr(training.features[name], "num_classes", None)
    values = column_of(training, name)
    if values.ndim == 1 and values.dtype.kind in "iubSU" and (count is None or values.min(initial=0) >= 0):
        return values
    if is_needed and count is not None:
        classes_of([training], name, "train", count)
    return _owners_of(training, name) if is_needed else None
