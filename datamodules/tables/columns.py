"""Columns of Hugging Face data sets: checked, read, and images decoded as the images in folders are."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from io import BytesIO
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from fl_lightning.datamodules.base.dealt import in_order
from fl_lightning.datamodules.files.folder import MODES, decode_image, opened
from fl_lightning.datamodules.images.image_folder import check_constants, constants_of, count_values
from fl_lightning.engine.federation.batches import TrainingBatch, check_examples
from fl_lightning.errors import ConfigurationError, check_at_least, check_choice, check_positive

GREY = {"1", "L", "LA", "La"}  # PIL's names of the modes without colours
GIB = 2**30
TURNED = range(5, 9)  # EXIF orientations that exchange height and width


class Tuples(Dataset[tuple[Any, ...]]):
    """The examples of a Hugging Face data set as tuples of some columns."""

    def __init__(self, dataset: Any, columns: Sequence[str]) -> None:
        self.dataset, self.columns = dataset, columns

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        example = self.dataset[index]
        return tuple(example[column] for column in self.columns)


def prepared(dataset: Any, columns: Sequence[str] | None, client: str | None = None) -> Any:
    """Return a Hugging Face data set that gives tensors, without the client column, in tuples if columns are named."""
    check_columns(dataset, columns or ())
    if dataset.format["type"] is None:
        dataset = dataset.with_format("torch")
    if client in dataset.column_names and client not in (columns or ()):
        dataset = dataset.remove_columns([client])
    return Tuples(dataset, columns) if columns else dataset


def check_columns(dataset: Any, columns: Sequence[str]) -> None:
    """Refuse a data set that is streamed, is no Hugging Face data set, or lacks one of the columns."""
    names = getattr(dataset, "column_names", None)
    if names is None or not hasattr(dataset, "with_format"):
        raise ConfigurationError(
            f"expected a datasets.Dataset (pip install 'fl-lightning[huggingface]'), got {type(dataset).__name__}: "
            "give such a data set, or use FederatedDataModule.from_loaders"
        )
    check_examples(dataset, "the data set")
    if missing := [column for column in columns if column not in names]:
        raise ConfigurationError(f"expected columns {', '.join(missing)}, got {', '.join(names)}: choose among these")


def column_of(dataset: Any, name: str) -> Any:
    """Return one column of a Hugging Face data set as an array."""
    return np.asarray(dataset.with_format(None)[name][:])


def image_columns(dataset: Any, columns: Sequence[str] | None, label: str) -> tuple[str, str] | None:
    """Find the columns of the image and the class of a data set of labelled images.

    Args:
        dataset: Hugging Face data set.
        columns: the columns of an example; None for no choice.
        label: name of the column of classes; if there is no such column, the only one of type ``ClassLabel``.

    Returns:
        The names of the two columns; None if images are not decoded: there is not one column of images, ``columns``
        are others, or the data set has a format or a transform of its own.

    Raises:
        ConfigurationError: there is one column of images, and no column of classes.
    """
    kinds = {name: type(feature).__name__ for name, feature in dataset.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    if len(images) != 1 or dataset.format["type"] is not None:
        return None
    classes = [label] if label in kinds else [name for name, kind in kinds.items() if kind == "ClassLabel"]
    if columns is not None and list(columns) != [*images, *classes]:
        return None
    if len(classes) != 1:
        raise ConfigurationError(
            f"expected a column of classes beside {images[0]}, got {', '.join(kinds)}: name the column by label, or all "
            "columns of an example by columns"
        )
    return images[0], classes[0]


class ColumnImages(LightningDataModule):
    """The splits of a Hugging Face data set of labelled images, decoded when they are first asked for.

    Args:
        splits: data sets by the names ``train``, ``val`` and ``test``.
        columns: names of the columns of the image and the class.
        channels, image_size, mean, std, memory_gib: as for :class:`HuggingFace`.
        batch_size: number of examples in a batch.
        collate_fn: function that makes a batch of examples; None for PyTorch's own.
    """

    def __init__(
        self,
        splits: Mapping[str, Any],
        columns: tuple[str, str],
        channels: int | None,
        image_size: int | tuple[int, int] | None,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        memory_gib: float,
        batch_size: int,
        collate_fn: Callable[[list[Any]], Any] | None,
    ) -> None:
        super().__init__()
        size = (image_size, image_size) if isinstance(image_size, int) else image_size
        if size is not None:
            check_at_least(1, **{"the height in image_size": size[0], "the width in image_size": size[1]})
        check_choice("channels", channels, None, *MODES)
        check_positive(memory_gib=memory_gib)
        if mean is not None or std is not None:
            check_constants(mean, std, channels or len(mean or std or ()))
        self._splits, self._image, self._label = splits, columns[0], columns[1]
        self._channels, self._size, self._given, self._memory = channels, size, (mean, std), memory_gib * GIB
        self._batch_size, self._collate_fn = batch_size, collate_fn
        for name in splits:
            setattr(self, f"{name}_dataloader", partial(self._loader, name))

    @cached_property
    def num_classes(self) -> int:
        """C, the number of classes: as the data set says, else 1 + the largest label."""
        known = getattr(self._splits["train"].features[self._label], "num_classes", None)
        return known or 1 + max(int(labels.max()) for labels in self._labels.values())

    @cached_property
    def sets(self) -> dict[str, Dataset[Any]]:
        """The examples of each split, uint8 images (C, H, W) and int64 labels: in memory if they fit."""
        stored = {name: _stored(split, self._image) for name, split in self._splits.items()}
        shape = self._shape(stored)
        size = sum(map(len, stored.values())) * int(np.prod(shape))
        if size > self._memory:
            rank_zero_warn(
                f"the decoded images would take {size / GIB:,.1f} GiB, more than memory_gib={self._memory / GIB:g}: they "
                "are decoded again whenever they are used"
            )
        sets = {}
        for name, split in stored.items():
            check_examples(split, f"the split {name}")
            images = LazyImages(split, self._image, self._labels[name], shape, name)
            sets[name] = images if size > self._memory else images.in_memory()
        return sets

    @cached_property
    def constants(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel of the training set: as given, else measured."""
        train: Any = self.sets["train"]
        mean, std = self._given
        if mean is not None:
            return check_constants(mean, std, train[0][0].shape[0])
        chunks = train.tensors[0].split(1000) if isinstance(train, TensorDataset) else (x[None] for x, _ in train)
        counts = torch.zeros((), dtype=torch.int64)
        for chunk in chunks:
            counts = counts + count_values(chunk)
        return constants_of(counts)

    @cached_property
    def _labels(self) -> dict[str, Tensor]:
        labels = {}
        for name, split in self._splits.items():
            values = column_of(split, self._label)
            if values.dtype.kind not in "iub" or values.ndim != 1 or not len(values) or values.min() < 0:
                raise ConfigurationError(
                    f"expected classes from 0 in the column {self._label} of {name}, got {values.dtype} from "
                    f"{min(values, default='none')}: name another column by label, or convert it with "
                    "class_encode_column"
                )
            labels[name] = torch.from_numpy(values.astype(np.int64))
        return labels

    def _shape(self, stored: Mapping[str, Any]) -> tuple[int, int, int]:
        """Look at all images; return the shape that they get, and warn of those that are scaled to it."""
        found = {name: Counter(_looks(row, name, self._image) for row in split) for name, split in stored.items()}
