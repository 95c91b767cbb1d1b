"""The classes, clients and domains of the rows of a Hugging Face data set, as numbers or as they are written."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.datamodules.base.loaders import as_groups
from fl_lightning.datamodules.partition import Partition
from fl_lightning.datamodules.tables.values import classes_of, column_of, groups_of


def groups_in(training: Any, name: str) -> Any:
    """Read the column (n,) of integers or texts that gives the client or the domain of each training example."""
    return as_groups(groups_of(training, name, "train"), name)


def count_classes(split: Any, name: str) -> int | None:
    """Return how many classes a column of type ``ClassLabel`` names; None for other columns."""
    count: int | None = getattr(split.features.get(name), "num_classes", None)
    return count


def class_numbers(split: Any, name: str) -> Tensor | None:
    """Return the class (n,) of each example, in a column of type ``ClassLabel``; None for other columns."""
    if count_classes(split, name) is None:
        return None
    values = column_of(split, name)
    if values.ndim != 1 or values.dtype.kind not in "iu" or values.min(initial=0) < 0:
        return None
    return torch.from_numpy(values.astype(np.int64))


def other_classes(train: Any, name: str, partition: Partition) -> Tensor | None:
    """Number the values (n,) of another column, for partitions and for the overview of the clients.

    Returns:
        None if the column is not there, or holds others than integers, truth values or texts and no partition needs it.
    """
    if name not in train.column_names:
        return None
    values = column_of(train, name)
    count = count_classes(train, name)
    is_plain = values.ndim == 1 and values.dtype.kind in "iubSU" and (count is None or values.min(initial=0) >= 0)
    if not is_plain:
        if partition.by not in ("labels", "domains"):
            return None
        if count is not None:
            classes_of([train], name, "train", count)
        values = groups_in(train, name)
    return torch.from_numpy(np.unique(values, return_inverse=True)[1])
