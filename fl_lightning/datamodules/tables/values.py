"""Columns of Hugging Face data sets that say what examples are (class, client, domain): read, and refused in one line.

Here stands what the library lets pass: examples without a value, classes that other splits number otherwise, lists.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_lightning.datamodules.base.loaders import check_complete, missing_in
from fl_lightning.errors import ConfigurationError


def column_of(dataset: Any, name: str) -> NDArray[Any]:
    """Return one column of a Hugging Face data set as an array; lists of different length as objects (n,)."""
    values = dataset.with_format(None)[name][:]
    try:
        return np.asarray(values)
    except ValueError:  # lists of different length
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return array


def groups_of(dataset: Any, name: str, split: str) -> NDArray[Any]:
    """Read the column (n,) that gives the client or the domain of each example.

    Raises:
        ConfigurationError: the column holds lists, or values are missing.
    """
    _check_single(dataset, name, split)
    values = column_of(dataset, name)
    check_complete(values, f"{name} of the {split} set")
    return values


def classes_of(parts: Sequence[Any], name: str, split: str, count: int | None) -> Tensor:
    """Read the class of each example.

    Args:
        parts: data sets that follow one another.
        name: name of the column of classes.
        split: name of the split, for messages.
        count: C, the number of classes; None if unknown.

    Returns:
        (n,) int64, n >= 1, from 0 to C - 1.

    Raises:
        ConfigurationError: values are missing, unknown (-1), lists, no whole numbers, or above C - 1.
    """
    for part in parts:
        _check_single(part, name, split)
    values = np.concatenate([column_of(part, name) for part in parts])
    got, remedy = "", "leave these examples out, or name another column by label"
    if missing := missing_in(values):
        got = f"{missing} missing values"
    elif values.dtype.kind not in "iub" or not len(values):
        got = f"{values.dtype} from {min(values, default='none')}"
        remedy = "name another column by label, or convert it with class_encode_column"
    elif values.min() < 0:
        got = f"{values.dtype} from {values.min()}, {(values < 0).sum()} of {len(values)} below 0"
    elif count is not None and values.max() >= count:
        got = f"class {values.max()}, where the train set has {count} classes"
    if got:
        raise ConfigurationError(
            f"expected classes from 0 in the column {name} of the {split} set, got {got}: {remedy}"
        )
    return torch.from_numpy(values.astype(np.int64))


def numbers_of(dataset: Any, name: str, split: str) -> Tensor:
    """Read a column (n, ...) of numbers, one or a list of one length for each example.

    Raises:
        ConfigurationError: values are missing, texts, or lists of different length.
    """
    values = column_of(dataset, name)
    if values.dtype.kind not in "iufb":
        missing = missing_in(values)
        got = f"{missing} missing values" if missing else f"values such as {values.tolist()[0]!r}"
        raise ConfigurationError(
            f"expected numbers in the column {name} of the {split} set, got {got}: columns names one column of texts, "
            "then columns of numbers"
        )
    return torch.from_numpy(values)


def is_unlabelled(dataset: Any, name: str) -> bool:
    """Tell whether a column of type ``ClassLabel`` says that no example's class is known: all -1, or missing."""
    if name not in dataset.column_names or not len(dataset) or not _is_class_label(dataset.features[name]):
        return False
    return all(value is None or value < 0 for value in column_of(dataset, name).tolist())


def check_class_names(train: Mapping[str, Any], other: Mapping[str, Any], columns: Sequence[str], where: str) -> None:
    """Refuse columns of type ``ClassLabel`` whose classes are numbered in another way than in the training set.

    A number must stand for one class wherever both sets name it; one of them may have more classes.

    Args:
        train: features of the training set, by column.
        other: features of another set.
        columns: names of the columns that are read.
        where: the other set, for the message.
    """
    for column in columns:
        pairs = zip(_class_names(train.get(column)), _class_names(other.get(column)), strict=False)
        for number, (expected, got) in enumerate(pairs):
            if expected != got:
                raise ConfigurationError(
                    f"expected class {number} of the column {column} in the {where} to be {expected}, as in the train "
                    f"set, got {got}: renumber the classes by their names with align_labels_with_mapping, or keep "
                    "their numbers with cast_column"
                )


def check_examples(train: Any, dataset: Any, columns: Sequence[str], label: str, split: str, stacked: bool) -> None:
    """Refuse examples that the library would hand over as tensors of something else.

    These are missing values, of which nan would be made, columns of another kind than those of training, and unknown
    classes. A data set with a format or a transform of its own says itself what its values become.

    Args:
        train: Hugging Face data set with training examples.
        dataset: data set to check, perhaps ``train``.
        columns: names of the columns that are read.
        label: name of the column of classes.
        split: name of the data set's split, for messages.
        stacked: whether PyTorch stacks the examples; False for a function of the user's.
    """
    if dataset.format["type"] is not None:
        return
    for name in columns:
        if name not in dataset.column_names:
            continue
        if _kind(dataset, name) != _kind(train, name):
            raise ConfigurationError(
                f"expected the column {name} of the {split} set to be {train.features[name]}, as in the train set, got "
                f"{dataset.features[name]}: convert the column with cast_column, or leave it out by columns"
            )
        missing = _count_missing(dataset.data.column(name), stacked)
        if missing:  # perhaps in rows that were filtered out: the table holds them all the same
            chosen = dataset.select_columns([name]).with_format("arrow")[:]
            missing = _count_missing(chosen.column(name), stacked)
        if missing:
            raise ConfigurationError(
                f"expected column {name} of the {split} set to be complete, got {missing} missing values: fill the "
                "values, leave these examples out, or choose other columns; with_format('torch') keeps them as nan"
            )
        count = getattr(train.features[name], "num_classes", None)
        if name == label and count is not None:
            classes_of([dataset], name, split, count)


def _count_missing(column: Any, stacked: bool) -> int:
    """Count the missing values of an Arrow column, also within lists; of other types than numbers if ``stacked``."""
    count = 0
    for chunk in column.chunks:
        values = getattr(chunk, "storage", chunk)  # of the library's own types, such as Array2D
        missing = values.null_count
        while _is_list(values.type):
            values = values.flatten()
            missing += values.null_count
        if stacked or _kind_of(values.type) != "other":
            count += missing
    return count


def _kind(dataset: Any, name: str) -> tuple[int, str]:
    """Return how deep a column's lists are nested, and the kind of what they hold."""
    stored = dataset.data.schema.field(name).type
    stored = getattr(stored, "storage_type", stored)
    depth = 0
    while _is_list(stored):
        stored = stored.value_type
        depth += 1
    return depth, _kind_of(stored)


def _kind_of(stored: Any) -> str:
    """Return the kind of an Arrow type."""
    types = import_module("pyarrow").types
    if types.is_boolean(stored):
        return "truth value"
    if types.is_integer(stored):
        return "whole number"
    return "float" if types.is_floating(stored) else "other"


def _is_list(stored: Any) -> bool:
    types = import_module("pyarrow").types
    return bool(types.is_list(stored) or types.is_large_list(stored) or types.is_fixed_size_list(stored))


def _check_single(dataset: Any, name: str, split: str) -> None:
    """Refuse a column that holds lists, or other values of several parts."""
    datasets = import_module("datasets")
    feature = dataset.features[name]
    if not isinstance(feature, datasets.Value | datasets.ClassLabel):
        raise ConfigurationError(
            f"expected one value for each example in the column {name} of the {split} set, got {feature}: name another "
            "column"
        )


def _is_class_label(feature: Any) -> bool:
    return isinstance(feature, import_module("datasets").ClassLabel)


def _class_names(feature: Any) -> list[str]:
    """Return the names of a column's classes, also within lists; an empty list for a column without such names."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return feature.names if _is_class_label(feature) else []
