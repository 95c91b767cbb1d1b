"""Columns of texts, of prompts and responses, or of chats, as examples of tokens, with a line on what is left out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import TensorDataset

from fl_lightning.datamodules.tables.columns import check_columns
from fl_lightning.datamodules.tables.texts.prompts import of_chats, of_prompts
from fl_lightning.datamodules.tables.tokens import Example, Read, Tokenizer, filled, of_texts
from fl_lightning.datamodules.tables.values import classes_of, numbers_of
from fl_lightning.errors import ConfigurationError

STRINGS = ("string", "large_string")  # Arrow's names of texts


@dataclass(frozen=True)
class TokenSets:
    """Data sets of texts, and their examples in memory.

    Attributes:
        splits: data sets by the names of their splits, with one row for each example.
        examples: tokens (n, length) and, for prompts and chats, labels (n, length), else what other columns hold.
        is_changed: whether rows of the training set are left out, or make several examples.
    """

    splits: Mapping[str, Any]
    examples: Mapping[str, TensorDataset]
    is_changed: bool


def tokenized(
    splits: Mapping[str, Any],
    tokenizer: Tokenizer,
    columns: Sequence[str] | None,
    label: str,
    left_out: Sequence[str],
) -> TokenSets:
    """Cut the texts of each split into tokens, in memory.

    Args:
        splits: data sets by the names of their splits; a split that stands under two names is read once.
        tokenizer: the tokenizer, with the settings by which it cuts texts.
        columns: names of the columns of prompts and of responses, which are two columns of texts; of the column of
            chats; or of the column of texts and, optionally, of that of the classes and of others. By default the only
            column of texts or chats and, beside texts, ``label`` if there is such a column.
        label: name of the column of classes.
        left_out: names of the columns of clients and of domains, which are no texts.

    Raises:
        ConfigurationError: there are no such columns; a column of texts holds other values, one of classes no classes;
            a second column may hold responses or classes; no example is left; or as :func:`of_chats`.
    """
    train = splits["train"]
    first, *others = columns or [_text_column(train, [label, *left_out]), label]
    others = [name for name in others if name in train.column_names]
    kind = _kind(train, first, others, label)
    if kind == "chats":
        if columns and others:
            raise ConfigurationError(
                f"expected columns to name the column of chats alone, got {first}, {', '.join(others)}: leave out the "
                "others, or join their messages in one column"
            )
        others = []
    made: dict[int, tuple[Any, TensorDataset]] = {}
    counts: Counter[str] = Counter()
    for name, split in splits.items():
        if id(split) in made:
            continue
        check_columns(split, [first, *others], name)
        rows, found = _read(split, name, tokenizer, kind, first, others)
        counts += found
        chosen = _chosen(split, name, rows, first)
        examples = [example for own in rows for example in own]
        tensors = [filled([example.tokens for example in examples], tokenizer.length)]
        if kind == "texts":
            for column in others:
                count = getattr(train.features[column], "num_classes", None)
                if column == label or count is not None:
                    tensors.append(classes_of([chosen], column, name, count))
                else:
                    tensors.append(numbers_of(chosen, column, name))
        else:
            tensors.append(filled([example.labels or [] for example in examples], tokenizer.length))
        made[id(split)] = chosen, TensorDataset(*tensors)
    _tell(counts, kind, tokenizer)
    new = {name: made[id(split)][0] for name, split in splits.items()}
    examples_of = {name: made[id(split)][1] for name, split in splits.items()}
    return TokenSets(new, examples_of, new["train"] is not train)


def _text_column(dataset: Any, others: Sequence[str]) -> str:
    """Find the only column of texts or of chats beside some others."""
    features = dataset.features
    found = [name for name in features if name not in others and (_is_text(dataset, name) or _is_chat(dataset, name))]
    if len(found) != 1:
        raise ConfigurationError(
            f"expected one column of texts for tokenizer, got {', '.join(found) or 'none'} among "
            f"{', '.join(features)}: name the column, or those of prompts and responses, by columns"
        )
    return str(found[0])


def _kind(train: Any, first: str, others: Sequence[str], label: str) -> str:
    if _is_chat(train, first):
        return "chats"
    if len(others) == 1 and others[0] != label:
        (second,) = others
        if _is_text(train, second):
            return "prompts"
        if getattr(train.features[second], "num_classes", None) is None:
            raise ConfigurationError(
                f"expected texts, the responses, or classes in the column {second}, got numbers: set label to {second} "
                'if they are classes; write responses as texts ("4") in a .jsonl file'
            )
    return "texts"


def _is_text(dataset: Any, name: str) -> bool:
    return getattr(dataset.features[name], "dtype", "") in STRINGS


def _is_chat(dataset: Any, name: str) -> bool:
    """Tell whether a column holds lists of entries by name."""
    feature = dataset.features[name]
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", feature)
    return isinstance(inner, Mapping) or type(inner).__name__ == "Json"  # entries that differ from row to row


def _read(split: Any, name: str, tokenizer: Tokenizer, kind: str, first: str, others: Sequence[str]) -> Read:
    """Read the examples of each row."""
    values = split.with_format(None)
    if kind == "chats":
        return of_chats(tokenizer, values[first][:], first, name)
    texts = _texts(values[first][:], first)
    if kind == "prompts":
        return of_prompts(tokenizer, texts, _texts(values[others[0]][:], others[0]))
    return of_texts(tokenizer, texts)


def _texts(values: Sequence[Any], column: str) -> list[str]:
    """Return texts, empty ones in place of those that are missing, as an empty field of a CSV file is."""
    texts = ["" if value is None else value for value in values]
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong:
        raise ConfigurationError(f"expected texts in column {column}, got {wrong[0]!r}: leave such examples out")
    return texts


def _chosen(split: Any, name: str, rows: Sequence[Sequence[Example]], column: str) -> Any:
    """Return a data set with a row for each example; the data set itself if each row is one example."""
    numbers = [row for row, own in enumerate(rows) for _ in own]
    if numbers == list(range(len(split))):
        return split
    if not numbers:
        raise ConfigurationError(
            f"expected texts in the column {column} of the {name} set, got none: all {len(rows)} rows have no text, or "
            "no response within length: fill them, or raise length"
        )
    return split.select(numbers)


def _tell(counts: Counter[str], kind: str, tokenizer: Tokenizer) -> None:
    """Warn once of what the examples lack, in all splits together."""
    total, length = f"{counts['texts']:,}", tokenizer.length
    remedy = "raise length, or set long_texts to chunk"
    if counts["empty"]:
        what = "text" if kind == "texts" else "response"
        rank_zero_warn(f"{counts['empty']:,} of {total} rows have no {what}: they are no examples, and are left out")
    if counts["beyond"]:
        rank_zero_warn(
            f"{counts['beyond']:,} of {total} rows have no response within length={length}, since what stands before "
            f"it takes all places: they are left out; {remedy}"
        )
    if counts["cut"]:
        rank_zero_warn(
            f"{counts['cut']:,} of {total} texts have more than length={length} tokens: {counts['lost']:,} of "
            f"{counts['tokens']:,} tokens are cut off; {remedy}"
        )
    if counts["merged"]:
        rank_zero_warn(
            f"{counts['merged']:,} of {total} prompts end in letters that share a token with their responses, which "
            "counts as the response's: end prompts in a newline, or begin responses with a space"
        )
