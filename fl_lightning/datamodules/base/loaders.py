"""Ordinary loaders and data sets, as the source of the clients' data."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
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

from fl_lightning.engine.federation.batches import CPU, Collate, Examples, check_examples
from fl_lightning.engine.federation.clients import unchanged
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
    several = [data]
    if isinstance(data, Mapping):
        several = list(data.values())
    elif isinstance(data, list | tuple):
        several = list(data)
    if any(isinstance(part, DataLoader) for part in several):
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
    dataset = loader.dataset
    sampler = loader.sampler
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
    if loader.worker_init_fn is not None:
        rank_zero_warn(
            f"the worker_init_fn of {name} is not called: clients read their examples by loaders of their own "
            "(data.num_workers), which seed each example; let the dataset open what it needs when it is first read"
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
        parts = [stored(part, find) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None
    values = find(dataset)
    return None if values is None else np.asarray(values)


def _labels(dataset: Any) -> Any:
    """Find the labels in the second tensor of a TensorDataset, or in the attributes ``targets`` and ``labels``."""
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1].numpy(force=True) if len(dataset.tensors) > 1 else None
    for name in STORED:
        labels = getattr(dataset, name, None)
        if labels is not None and len(labels) == len(dataset):
            return labels
    return None


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
    keys: set[str] = set()
    if values is None:
        with isolated(CPU):
            keys = set(first) if isinstance(first := examples[0], Mapping) else keys
        if name in keys:
            values = _read_entries(examples, itemgetter(name))
    if values is None:
        raise ConfigurationError(
            f"expected a column {name} in the training set, got {', '.join(sorted(known | keys)) or 'none'}: name "
            f"another, or give the dataset or the data module an attribute {name}, with a value for each example"
        )
    return as_groups(values, name)


def _columns(holder: Any, count: int) -> dict[str, Any]:
    """Return what an object holds for each of ``count`` examples, by name: columns of DataFrames, and attributes."""
    held = {key: value for key, value in getattr(holder, "__dict__", {}).items() if not key.startswith("_")}
    frames = [value for value in held.values() if hasattr(value, "columns") and len(value) == count]
    lists = {key: value for key, value in held.items() if isinstance(value, COLUMN) or hasattr(value, "to_numpy")}
    own = {key: value for key, value in lists.items() if len(value) == count and getattr(value, "ndim", 1) == 1}
    return {str(column): frame[column] for frame in frames for column in frame.columns} | own


def missing_in(values: NDArray[Any]) -> int:
    """Count the missing values of an array: None, nan."""
    from pandas import isna

    return int(isna(values).sum())


def check_complete(values: NDArray[Any], name: str) -> None:
    """Refuse a column with missing values."""
    if missing := missing_in(values):
        raise ConfigurationError(
            f"expected column {name} to be complete, got {missing} missing values: fill the values or leave these "
            "examples out"
        )


def as_groups(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the values of a column as integers or strings; refuse others, and missing values."""
    check_complete(values, name)
    if (plain := np.asarray(values.tolist())).dtype.kind not in "iuSU":
        raise ConfigurationError(f"expected column {name} to hold integers or texts, got {plain.dtype}: convert them")
    return plain


def _read_entries(examples: Examples, entry: Callable[[Any], Any]) -> NDArray[Any]:
    """Read an entry of every example."""
    with isolated(CPU):
        seed_globals(0, CPU)
        values = (entry(examples[index]) for index in range(len(examples)))
        return np.asarray([value.tolist() if isinstance(value, Tensor) else value for value in values])


def label_entry(examples: Examples, classes: Tensor | None) -> str | int | None:
    """Return the entry of an example that holds its class: its second, or ``label``, ``targets`` or ``labels``.

    Args:
        examples: the examples.
        classes: (n,) their classes, numbered from 0; None for examples without classes.

    Returns:
        Position or name of the entry; None if there is none, or if it holds other values than the classes' numbers.
    """
    if isinstance(examples, TensorDataset):
        entry: str | int | None = 1 if len(examples.tensors) > 1 else None
    else:
        with isolated(CPU):
            entry = _entry(examples[0])
    if entry is None or classes is None:
        return None
    values = stored(examples, _labels)
    values = _read_entries(examples, _label) if values is None else values
    return entry if np.array_equal(values, classes.numpy()) else None


def _entry(example: Any) -> str | int | None:
    if isinstance(example, Mapping):
        return next((key for key in ("label", *STORED) if key in example), None)
    return 1 if isinstance(example, Sequence) and not isinstance(example, str) and len(example) > 1 else None


def _label(example: Any) -> Any:
    """Return the label of an example."""
    key: Any = _entry(example)
    if key is None:
        raise ConfigurationError(
            f"expected examples (input, label) or with an entry label, got {type(example).__name__}: give labels=, one "
            "class for each training example"
        )
    return example[key]


def read_labels(examples: Examples, labels: Any, by: str | None) -> Tensor | None:
    """Number the classes of a training set from 0, in sorted order.

    Args:
        examples: the training set, n examples.
        labels: (n,) class or group of each example, or None to look for the labels in the training set.
        by: name of the partition or option that needs the labels. If it is None, no example is read to find them.

    Returns:
        (n,) int64; None if the labels are not known, or are no classes.

    Raises:
        ConfigurationError: there are no labels and something goes by them, or ``labels`` are not classes.
    """
    count = len(examples)
    values = stored(examples, _labels) if labels is None else np.asarray(labels)
    if values is None and by is not None:
        values = _read_entries(examples, _label)
    if values is None:
        return None
    if values.shape == (count,) and values.dtype.kind in "iubSU":
        return torch.from_numpy(np.unique(values, return_inverse=True)[1])
    if labels is None and by is None:
        return None
    what = "labels" if labels is not None else f"the labels, by which {by} goes,"
    raise ConfigurationError(
        f"expected {what} to be integers or strings ({count},), one for each training example, got {values.dtype} "
        f"{values.shape}: give labels=, or leave out what goes by labels (partition: IID does without)"
    )
