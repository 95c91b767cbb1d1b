"""Columns of Hugging Face data sets: checked, read, and images decoded as the images in folders are."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from io import BytesIO
from itertools import chain
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, TensorDataset, default_collate

from fl_lightning.datamodules.files.folder import decode_image, opened
from fl_lightning.datamodules.images.image_folder import pair_of
from fl_lightning.datamodules.tables.values import classes_of
from fl_lightning.engine.federation.batches import TrainingBatch, check_examples
from fl_lightning.errors import ConfigurationError

GREY = {"1", "L", "LA", "La"}  # PIL's names of the modes without colours
GIB = 2**30
ORIENTATION = 0x0112  # the EXIF tag
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


def prepared(dataset: Any, columns: Sequence[str] | None, left_out: Sequence[str] = ()) -> Any:
    """Return a Hugging Face data set that gives tensors, without some columns, in tuples if columns are named."""
    check_columns(dataset, columns or ())
    if dataset.format["type"] is None:
        dataset = dataset.with_format("torch")
    unused = [name for name in left_out if name in dataset.column_names and name not in (columns or ())]
    if unused:
        dataset = dataset.remove_columns(unused)
    return Tuples(dataset, columns) if columns else dataset


def check_columns(dataset: Any, columns: Sequence[str], split: str = "train") -> None:
    """Refuse a data set that is streamed, is no Hugging Face data set, or lacks one of the columns."""
    names = getattr(dataset, "column_names", None)
    if names is None or not hasattr(dataset, "with_format"):
        raise ConfigurationError(
            f"expected a datasets.Dataset (pip install 'fl-lightning[huggingface]'), got {type(dataset).__name__}: "
            "give such a data set, or use FederatedDataModule.from_loaders"
        )
    check_examples(dataset, "the data set")
    if missing := [column for column in columns if column not in names]:
        where, remedy = "", "choose among these"
        if split != "train":
            where, remedy = f" in the {split} set, too", "add them, or leave this set out"
        raise ConfigurationError(f"expected columns {', '.join(missing)}{where}, got {', '.join(names)}: {remedy}")


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
    classes = [label]
    if label not in kinds:
        classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    if columns is not None and list(columns) != [*images, *classes]:
        return None
    if len(classes) != 1:
        raise ConfigurationError(
            f"expected a column of classes beside {images[0]}, got {', '.join(kinds)}: name the column by label, or "
            "all columns of an example by columns"
        )
    return images[0], classes[0]


def check_no_images(**settings: Any) -> None:
    """Refuse settings of images for a data set whose images are not decoded."""
    if given := [name for name, value in settings.items() if value]:
        raise ConfigurationError(
            f"expected one column of images, and no other choice of columns, for {', '.join(given)}, got other data: "
            "leave these settings out"
        )


class ColumnImages:
    """The splits of a Hugging Face data set of labelled images, decoded when they are first asked for.

    Args:
        splits: data sets, or lists of data sets that follow one another, by the names ``train``, ``test`` and ``val``.
        columns: names of the columns of the image and the class.
        channels, image_size, memory_gib: as for :class:`ColumnData`.
    """

    def __init__(
        self,
        splits: Mapping[str, Any],
        columns: tuple[str, str],
        channels: int | None,
        image_size: int | tuple[int, int] | None,
        memory_gib: float,
    ) -> None:
        # A data set that serves twice is decoded once, under the first of its names.
        first = {id(split): name for name, split in reversed([*splits.items()])}
        self._names = {name: first[id(split)] for name, split in splits.items()}
        own = {name: split for name, split in splits.items() if self._names[name] == name}
        self._splits: dict[str, list[Any]] = {}
        for name, split in own.items():
            self._splits[name] = split if isinstance(split, list) else [split]
            for part in self._splits[name]:
                check_columns(part, columns, name)
        self._image, self._label = columns
        self._channels, self._size = channels, None if image_size is None else pair_of(image_size)
        self._memory = memory_gib * GIB

    @cached_property
    def num_classes(self) -> int:
        """C, the number of classes: as the data set says, else 1 + the largest label."""
        known = getattr(self._splits["train"][0].features[self._label], "num_classes", None)
        return known or 1 + max(int(labels.max()) for labels in self._labels.values())

    @cached_property
    def sets(self) -> dict[str, Dataset[Any]]:
        """The examples of each data set, uint8 images (C, H, W) and int64 labels: in memory if they fit."""
        stored: dict[str, ConcatDataset[Any]] = {}
        for name, parts in self._splits.items():
            columns = [_stored(part, self._image) for part in parts]
            stored[name] = ConcatDataset(columns)
        shape = self._shape(stored)
        size = sum(map(len, stored.values())) * math.prod(shape)
        if size > self._memory:
            rank_zero_warn(
                f"the decoded images would take {size / GIB:.2g} GiB, more than memory_gib={self._memory / GIB:.2g}: "
                "they are decoded whenever they are used, which is slower"
            )
        sets: dict[str, Dataset[Any]] = {}
        for name, split in stored.items():
            images = LazyImages(split, self._image, self._labels[name], shape, name)
            sets[name] = images if size > self._memory else images.in_memory()
        return sets

    def split(self, name: str) -> Any:
        """Return the examples of a split; a data set that serves twice is decoded once."""
        return self.sets[self._names[name]]

    @cached_property
    def _labels(self) -> dict[str, Tensor]:
        count = getattr(self._splits["train"][0].features[self._label], "num_classes", None)
        labels = {}
        for name, split in self._splits.items():
            labels[name] = classes_of(split, self._label, name, count)
        return labels

    def _shape(self, stored: Mapping[str, ConcatDataset[Any]]) -> tuple[int, int, int]:
        """Look at all images; return the shape that they get, and warn of those that are scaled to it."""
        looks = {name: Counter(self._looks(name, split)) for name, split in stored.items()}
        sizes: Counter[tuple[int, int]] = Counter()
        for (size, _), count in looks["train"].items():
            sizes[size] += count
        grey = all(is_grey for _, is_grey in looks["train"])
        height, width = self._size or sizes.most_common(1)[0][0]
        others: Counter[tuple[int, int]] = Counter()
        for found in looks.values():
            for (size, _), count in found.items():
                if size != (height, width):
                    others[size] += count
        if others:
            (other_height, other_width), _ = others.most_common(1)[0]
            rank_zero_warn(
                f"expected images of {width}x{height} pixels, got {others.total():,} of other sizes, such as "
                f"{other_width}x{other_height}: they are scaled until they cover {width}x{height}, and their middle is "
                "cut out; set image_size for another size"
            )
        return self._channels or (1 if grey else 3), height, width

    def _looks(self, name: str, split: ConcatDataset[Any]) -> Iterator[tuple[tuple[int, int], bool]]:
        """Yield height and width of each image of a split, as it is turned upright, and whether it is grey."""
        for number, row in enumerate(_rows(split)):
            with opened(_file(row[self._image]), _called(number, name), header=True) as image:
                turned = "exif" in image.info and image.getexif().get(ORIENTATION) in TURNED
                size = (image.width, image.height) if turned else (image.height, image.width)
                yield size, image.mode in GREY


class LazyImages(Dataset[tuple[Tensor, Tensor]]):
    """Labelled images that are decoded whenever they are read: uint8 (C, H, W), int64.

    Args:
        stored: Hugging Face data sets, one after the other, with the bytes or paths of the images.
        image: name of the column of images.
        labels: (n,) class of each image.
        shape: shape (C, H, W) of every image.
        name: name of the split, for messages.
    """

    def __init__(
        self, stored: ConcatDataset[Any], image: str, labels: Tensor, shape: tuple[int, int, int], name: str
    ) -> None:
        self.stored, self.image, self.labels, self.shape, self.name = stored, image, labels, shape, name

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pixels = torch.empty(self.shape, dtype=torch.uint8)
        decode_image(_file(self.stored[int(index)][self.image]), pixels, True, _called(int(index), self.name))
        return pixels, self.labels[index]

    def in_memory(self) -> TensorDataset:
        """Decode all images into one tensor (n, C, H, W)."""
        images = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        for number, row in enumerate(_rows(self.stored)):
            decode_image(_file(row[self.image]), images[number], True, _called(number, self.name))
        return TensorDataset(images, self.labels)


def stack_for_training(examples: list[Any]) -> TrainingBatch:
    """Stack examples into a batch that may be augmented."""
    return TrainingBatch(default_collate(examples))


def _stored(split: Any, image: str) -> Any:
    """Return the column of images as it is stored, not decoded by the library."""
    kind = type(split.features[image])
    return split.with_format(None).select_columns([image]).cast_column(image, kind(decode=False))


def _rows(stored: ConcatDataset[Any]) -> Iterator[Any]:
    """Yield the rows of data sets in order, which they read many at once."""
    parts: Any = stored.datasets
    return chain.from_iterable(parts)


def _file(cell: Mapping[str, Any] | None) -> str | BytesIO:
    """Return the content or the path of a stored image; no content if the image is missing."""
    content, path = (cell["bytes"], cell["path"]) if cell else (None, None)
    return path if content is None and path else BytesIO(content or b"")


def _called(number: int, name: str) -> str:
    return f"row {number} of the {name} set"
