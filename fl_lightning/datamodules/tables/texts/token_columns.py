"""Columns of tokens, as the tokenizers of transformers name them: by their names, whatever their order."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from fl_lightning.datamodules.tables.columns import check_columns
from fl_lightning.datamodules.tables.tokens import NOTHING, filled
from fl_lightning.datamodules.tables.values import column_of, numbers_of
from fl_lightning.errors import ConfigurationError

TOKENS, MASK, LABELS = "input_ids", "attention_mask", "labels"


def are_tokens(splits: Mapping[str, Any], columns: Sequence[str]) -> bool:
    """Tell whether columns are those of tokens with a mask, labels or both, in data sets without a format."""
    is_named = TOKENS in columns and len(columns) > 1 and {*columns} <= {TOKENS, MASK, LABELS}
    return is_named and all(split.format["type"] is None for split in splits.values())


def read_tokens(splits: Mapping[str, Any], columns: Sequence[str]) -> dict[str, TensorDataset]:
    """Read columns of tokens into memory: tokens (n, T), and labels (n, T) or classes (n,) if there are some.

    Args:
        splits: data sets by the names of their splits; a split that stands under two names is read once.
        columns: ``input_ids``, with ``attention_mask``, ``labels`` or both.

    Returns:
        Tokens, -100 outside of the mask and after the end; labels, -100 there, too. T is the longest text's of a split.

    Raises:
        ConfigurationError: the columns hold no lists of whole numbers, of one length in each row; a mask holds others
            than 0 and 1; a label is another token than that of its place.
    """
    made: dict[int, TensorDataset] = {}
    for name, split in splits.items():
        if id(split) not in made:
            check_columns(split, columns, name)
            made[id(split)] = _read(split, columns, name)
    return {name: made[id(split)] for name, split in splits.items()}


def _read(split: Any, columns: Sequence[str], name: str) -> TensorDataset:
    tokens = _lists(split, TOKENS, name)
    sizes = [len(row) for row in tokens]
    length = max(sizes)
    numbers = filled(tokens, length)
    if MASK in columns:
        mask = filled(_lists(split, MASK, name, sizes), length)
        if not torch.isin(mask, torch.tensor([0, 1, NOTHING])).all():
            raise ConfigurationError(
                f"expected 0 and 1 in the column {MASK} of the {name} set, got {int(mask.min())} to {int(mask.max())}: "
                "correct the mask, or leave the column out"
            )
        numbers = numbers.masked_fill(mask != 1, NOTHING)
    if LABELS not in columns:
        return TensorDataset(numbers)
    if column_of(split.select([0]), LABELS).ndim == 1:  # one for each text
        return TensorDataset(numbers, numbers_of(split, LABELS, name))
    labels = filled(_lists(split, LABELS, name, sizes), length).masked_fill(numbers == NOTHING, NOTHING)
    if wrong := int(((labels != NOTHING) & (labels != numbers)).sum()):
        raise ConfigurationError(
            f"expected the column {LABELS} of the {name} set to hold the token of each place, or {NOTHING} where it is "
            f"not to be predicted, got {wrong} others: give labels that are not moved, or leave the column out"
        )
    return TensorDataset(numbers, labels)


def _lists(split: Any, column: str, name: str, sizes: Sequence[int] | None = None) -> list[Sequence[int]]:
    """Read a column of lists of whole numbers, of given sizes if there are some."""
    rows: NDArray[Any] | list[Any] = split.with_format(None)[column][:]
    found = []
    for number, row in enumerate(rows):
        values = np.asarray(row)
        is_numbers = values.ndim == 1 and (not len(values) or values.dtype.kind in "iub")
        if not is_numbers or (sizes is not None and len(values) != sizes[number]):
            expected = "a list of whole numbers" if sizes is None else f"a list of {sizes[number]} whole numbers"
            raise ConfigurationError(
                f"expected {expected} in row {number} of the column {column} of the {name} set, got {str(row)[:60]}: "
                "correct the row, or name other columns"
            )
        found.append(values.tolist())
    return found
