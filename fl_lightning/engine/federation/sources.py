"""Ordinary loaders and data sets, as the source of the clients' data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from fl_lightning.engine.federation.batches import CPU, Collate, Examples, check_examples, unchanged
from fl_lightning.engine.federation.partition import Partition, Parts, Stated, check_enough, equal_owners, rows_of
from fl_lightning.errors import ConfigurationError
from fl_lightning.seeding import isolated, seed_globals

STORED = ("targets", "labels")  # attributes in which data sets keep their labels, and keys of examples
COLUMN = (list, tuple, np.ndarray, Tensor)  # classes of a column beside those of pandas


class Loaders(LightningDataModule):
    """A LightningDataModule of given loaders.

    Args:
        train: DataLoader or dataset to train on.
        batch_size: number of examples in a batch, for data given as datasets.
        collate_fn: function that makes a batch of examples, for data given as datasets.
        others: loaders, lists of loaders, or datasets by name: ``val``, ``test``, ``predict``.
    """

    def __init__(self, train: Any, batch_size: int, collate_fn: Collate | None, **others: Any) -> None:
        super().__init__()
        for name, data in {"train": train, **others}.items():
            if data is not None:
                loader = _loader(data, name, batch_size, collate_fn)
                setattr(self, f"{name}_dataloader", partial(unchanged, loader))


def _loader(data: Any, name: str, batch_size: int, collate_fn: Collate | None) -> Any:
    several = data.values() if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else [data]
    if any(isinstance(each, DataLoader) for each in several):
        return data
    examples: Any = check_examples(data, f"the {name} data")
    # With its own generator, the loader does not draw a seed for its workers from the global generator.
    return DataLoader(examples, batch_size=batch_size, collate_fn=collate_fn, generator=torch.Generator())


def training_data(datamodule: LightningDataModule) -> tuple[Examples, dict[str, Any]]:
    """Return the training examples of a data module, and how its ``train_dataloader`` makes batches of them.

    Args:
        datamodule: a data module that is set up.

    Returns:
        The dataset, and the loader's ``batch_size``, ``drop_last`` and ``collate_fn`` (None for PyTorch's own).

    Raises:
        ConfigurationError: ``train_dataloader`` does not return one DataLoader that passes over a map-style dataset in
            batches of one size.
    """
    name = f"{type(datamodule).__name__}.train_dataloader()"
    loader = datamodule.train_dataloader()
    if not isinstance(loader, DataLoader):
        raise ConfigurationError(
            f"expected {name} to return one DataLoader, got {type(loader).__name__}: return a single DataLoader"
        )
    dataset, sampler = loader.dataset, loader.sampler
    check_examples(dataset, f"the dataset of {name}")
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        got = "batch_size=None" if batches is None else type(batches).__name__
        raise ConfigurationError(f"expected {name} to have a batch_size, got {got}: clients draw their own batches")
    if isinstance(sampler, SubsetRandomSampler):
        dataset = Subset(dataset, list(sampler.indices))
    elif getattr(sampler, "replacement", False) or not isinstance(
        sampler, RandomSampler | SequentialSampler | DistributedSampler
    ):
        raise ConfigurationError(
            f"expected {name} to pass over its dataset once, got {type(sampler).__name__}: clients shuffle their own "
            "examples; leave the sampler out, or give a Subset"
        )
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    settings = {"batch_size": batches.batch_size, "drop_last": batches.drop_last, "collate_fn": collate}
    return check_examples(dataset, name), settings


def stored(dataset: Any, find: Callable[[Any], Any]) -> NDArray[Any] | None:
    """Find values (n,) that a dataset stores, one for each example, also below Subset and ConcatDataset.

    Args:
        dataset: the dataset.
        find: function that finds the values in a dataset that is none of the two; None if there are none.
    """
    if isinstance(dataset, Subset):
        inner = stored(dataset.dataset, find)
        return None if inner is None else inner[np.asarray(dataset.indices)]
    if isinstance(dataset, ConcatDataset):
        parts = [part for each in dataset.datasets if (part := stored(each, find)) is not None]
        return np.concatenate(parts) if len(parts) == len(dataset.datasets) else None
    return None if (found := find(dataset)) is None else np.asarray(found)


def _labels(dataset: Any) -> Any:
    """Find the labels in the second tensor of a TensorDataset, or in the attributes ``targets`` and ``labels``."""
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1].numpy(force=True) if len(dataset.tensors) > 1 else None
    found = (getattr(dataset, name, None) for name in STORED)
    return next((labels for labels in found if labels is not None and len(labels) == len(dataset)), None)


def column_of(examples: Examples, name: str, datamodule: LightningDataModule) -> NDArray[Any]:
    """Find a column of a training set: integers or strings (n,), one for each example.

    The column is an attribute of the dataset or the data module, a column of a DataFrame that the dataset holds, or an
    entry of examples that are dicts.

    Raises:
        ConfigurationError: there is no such column, values are missing, or they are neither integers nor strings.
    """
    known: set[str] = set()

    def find(dataset: Any) -> Any:
        columns = {**_columns(datamodule, len(dataset)), **_columns(dataset, len(dataset))}
        known.update(columns)
        own = getattr(dataset, name, None)  # such as a property
        return columns.get(name, own if isinstance(own, COLUMN) else None)

    values = stored(examples, find)
    if values is None:
        with isolated(CPU):
            seed_globals(0, CPU)
            keys = set(first) if isinstance(first := examples[0], Mapping) else set()
            if name in keys:
                values = np.asarray([_plain(examples[index][name]) for index in range(len(examples))])
    if values is None:
        raise ConfigurationError(
            f"expected a column {name} in the training set, got {', '.join(sorted(known | keys)) or 'none'}: name "
            f"another, or give the dataset or the data module an attribute {name}, with a value for each example"
        )
    return _complete(values, name)


def _columns(holder: Any, count: int) -> dict[str, Any]:
    """Return what an object holds for each of ``count`` examples, by name: columns of DataFrames, and attributes."""
    held = {key: value for key, value in getattr(holder, "__dict__", {}).items() if not key.startswith("_")}
    frames = [value for value in held.values() if hasattr(value, "columns") and len(value) == count]
    lists = {key: value for key, value in held.items() if isinstance(value, COLUMN) or hasattr(value, "to_numpy")}
    own = {key: value for key, value in lists.items() if len(value) == count and getattr(value, "ndim", 1) == 1}
    return {str(column): frame[column] for frame in frames for column in frame.columns} | own


def _complete(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the values of a column as integers or strings; refuse others, and missing values."""
    from pandas import isna

    if missing := int(isna(values).sum()):
        raise ConfigurationError(
            f"expected column {name} to be complete, got {missing} missing values: fill the values or leave these "
            "examples out"
        )
    if (plain := np.asarray(values.tolist())).dtype.kind not in "iuSU":
        raise ConfigurationError(f"expected column {name} to hold integers or texts, got {plain.dtype}: convert them")
    return plain


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def read_labels(examples: Examples) -> NDArray[Any]:
    """Read the label of every example: its second entry, or the entry ``label``, ``labels`` or ``targets``.

    Raises:
        ConfigurationError: an example has no such entry.
    """
    with isolated(CPU):
        seed_globals(0, CPU)
        return np.asarray([_label(examples[index]) for index in range(len(examples))])


def _label(example: Any) -> Any:
    if isinstance(example, Mapping):
        key: Any = next((key for key in ("label", *STORED) if key in example), None)
    else:
        key = 1 if isinstance(example, Sequence) and not isinstance(example, str) and len(example) > 1 else None
    if key is None:
        raise ConfigurationError(
            f"expected examples (input, label) or with an entry label, got {type(example).__name__}: give labels=, one "
            "class for each training example"
        )
    return _plain(example[key])


def classes_of(labels: Any, num_examples: int) -> Tensor | None:
    """Number the classes of labels from 0 in sorted order: (n,) int64; None if the labels are not classes."""
    values = np.asarray(labels)
    if values.shape != (num_examples,) or values.dtype.kind not in "iubSU":
        return None
    return torch.from_numpy(np.unique(values, return_inverse=True)[1])


@dataclass(frozen=True)
class Dealt:
    """A training set, dealt to clients.

    Attributes:
        examples: the training set.
        parts: each client's example indices.
        classes: (n,) class of each example, numbered from 0; None if the classes are unknown.
        names: the name of each client; None for clients without names.
    """

    examples: Examples
    parts: Parts
    classes: Tensor | None
    names: list[str] | None = None

    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of examples per client and class; None if the classes are unknown."""
        if self.classes is None:
            return None
        most = int(self.classes.max()) + 1
        return torch.stack([self.classes[part].bincount(minlength=most) for part in self.parts])


def deal(
    examples: Examples,
    partition: Partition | None,
    num_clients: int,
    labels: Any,
    generator: np.random.Generator,
    column: NDArray[Any] | None = None,
) -> Dealt:
    """Deal a training set to clients.

    Args:
        examples: the training set, n examples.
        partition: the partition; None for equal random parts.
        num_clients: N >= 1, the number of clients.
        labels: (n,) class or group of each example, or None to look for the labels in the training set.
        generator: source of all randomness.
        column: (n,) values of the column by which the partition deals; None for a partition without a column.

    Raises:
        ConfigurationError: there are no labels for a partition by label, ``labels`` are not classes, or the partition
            does not fit.
    """
    count = len(examples)
    if not isinstance(partition, Stated):
        check_enough(num_clients, count)
    found = stored(examples, _labels) if labels is None else labels
    classes = None if found is None else classes_of(found, count)
    if labels is not None and classes is None:
        raise _no_classes("labels", labels, count)
    if partition is None:
        return Dealt(examples, rows_of(equal_owners(count, num_clients, generator), num_clients), classes)
    if column is not None:
        groups = torch.from_numpy(np.unique(column, return_inverse=True)[1])
        return Dealt(examples, Parts.of(partition.split(groups, num_clients, generator)), classes)
    if partition.by == "groups" and labels is None:
        raise ConfigurationError(
            f"{type(partition).__name__} keeps groups together: name a column, or give labels=, the group of each "
            "training example"
        )
    if classes is None and partition.by != "nothing":
        found = read_labels(examples) if found is None else found
        classes = classes_of(found, count)
        if classes is None:
            raise _no_classes(f"the labels, by which {type(partition).__name__} deals,", found, count)
    numbers = torch.zeros(count, dtype=torch.int64) if classes is None else classes
    names = partition.names if isinstance(partition, Stated) else None
    return Dealt(examples, Parts.of(partition.split(numbers, num_clients, generator)), classes, names)


def _no_classes(what: str, values: Any, count: int) -> ConfigurationError:
    got = np.asarray(values)
    return ConfigurationError(
        f"expected {what} to be integers or strings ({count},), one for each training example, got {got.dtype} "
        f"{got.shape}: give labels=, or a partition without labels such as IID"
    )
