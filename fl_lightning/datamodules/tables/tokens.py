"""Texts of a Hugging Face data set as the numbers of their tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.datamodules.files.pretrained import read_pretrained
from fl_lightning.datamodules.tables.columns import check_columns
from fl_lightning.datamodules.tables.values import classes_of, numbers_of
from fl_lightning.errors import ConfigurationError, check_at_least

STRINGS = ("string", "large_string")  # Arrow's names of texts
NOTHING = -100  # stands at a place without a token, and is no token's number; as a label, that of no target in torch


def tokenized(
    splits: Mapping[str, Any],
    tokenizer: str,
    length: int,
    columns: Sequence[str] | None,
    label: str,
    left_out: Sequence[str],
) -> dict[str, TensorDataset]:
    """Cut the texts of each split into tokens, in memory: int64 (n, length), and the classes (n,) if there are some.

    Args:
        splits: data sets by the names of their splits; a split that stands under two names is read once.
        tokenizer: folder or name on the hub of a model, whose tokenizer cuts the texts.
        length: number of tokens of a text. A longer text is cut off; a shorter one is filled up with -100, which no
            token has: a tokenizer may fill up with a token that texts also hold, such as that of their end.
        columns: names of the column of texts and, optionally, of that of the classes; by default the only column of
            texts, and ``label`` if there is such a column.
        label: name of the column of classes.
        left_out: names of the columns of clients and of domains, which are no texts.

    Raises:
        ConfigurationError: the tokenizer cannot be read, ``length`` is below 1, there is no such column of texts, or
            another column holds texts, or ``label`` no classes.
    """
    check_at_least(1, length=length)
    cut = read_pretrained("AutoTokenizer", tokenizer)
    train = splits["train"]
    text, *others = columns or [_text_column(train, [label, *left_out]), label]
    others = [name for name in others if name in train.column_names]
    sets: dict[int, TensorDataset] = {}
    for name, split in splits.items():
        if id(split) not in sets:
            check_columns(split, [text, *others], name)
            tensors = [_numbers(split.with_format(None)[text][:], text, cut, length)]
            for column in others:
                count = getattr(train.features[column], "num_classes", None)
                if column == label or count is not None:
                    tensors.append(classes_of([split], column, name, count))
                else:
                    tensors.append(numbers_of(split, column, name))
            sets[id(split)] = TensorDataset(*tensors)
    return {name: sets[id(split)] for name, split in splits.items()}


def _text_column(dataset: Any, others: Sequence[str]) -> str:
    """Find the only column of texts beside some others."""
    kinds = {name: getattr(feature, "dtype", "") for name, feature in dataset.features.items()}
    texts: list[str] = [name for name, kind in kinds.items() if kind in STRINGS and name not in others]
    if len(texts) != 1:
        raise ConfigurationError(
            f"expected one column of texts for tokenizer, got {', '.join(texts) or 'none'} among {', '.join(kinds)}: "
            "name the column by columns"
        )
    return texts[0]


def _numbers(texts: Sequence[Any], column: str, cut: Any, length: int) -> Tensor:
    """Return the numbers (n, length) of the texts' tokens, -100 after the last one."""
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong:
        raise ConfigurationError(f"expected texts in column {column}, got {wrong[0]!r}: leave such examples out")
    numbers = torch.full((len(texts), length), NOTHING, dtype=torch.int64)
    found = cut(list(texts), truncation=True, max_length=length)["input_ids"] if texts else []
    for row, tokens in zip(numbers, found, strict=True):
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    return numbers
