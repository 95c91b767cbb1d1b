"""Names that the columns of a table give to clients, domains and classes: one way of reading them for all."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from fl_lightning.errors import ConfigurationError

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def as_written(path: Path, read: DataFrame, names: Sequence[str], label: str | None) -> DataFrame:
    """Return a CSV file's table with the columns of names as the file has them: 01 is not 1.

    Such a column holds numbers only if each of them is written in one way and without a leading zero; else it holds
    texts. An empty field is a missing value; NA, None and null are so in the column of classes alone.

    Args:
        path: the CSV file.
        read: the file as pandas reads it.
        names: the columns that name clients and domains.
        label: the column of classes; None for a file without. Fractions and truth values stay what they are.
    """
    import pandas as pd

    is_named = label in read and not pd.api.types.is_float_dtype(read[label]) and not _is_bool(read[label])
    asked = dict.fromkeys([*names, label] if is_named else names)
    columns = [name for name in asked if name in read]
    if not columns:
        return read
    written = pd.read_csv(path, usecols=columns, index_col=False, dtype=str, keep_default_na=False, na_values=[""])
    result = read.copy(deep=False)
    for column in columns:
        texts = written[column]
        gaps = read[column].isna() & texts.notna()
        if column in names and gaps.any():
            rank_zero_warn(f"{column}: {texts[gaps].iloc[0]} is taken for a name, not for a missing value")
        elif gaps.any():
            texts = texts.mask(gaps)
        if texts.str.strip().nunique() > read[column].nunique() or texts.str.match(r"\s*0\d").any():
            result[column] = texts
    return result


def distinct(column: Series[Any], name: str) -> list[Any]:
    """Return a column's distinct values in sorted order; warn of texts that look the same.

    Args:
        column: the column.
        name: the column's name, for messages.

    Raises:
        ConfigurationError: values are missing, or of several types.
    """
    if column.isna().any():
        raise ConfigurationError(
            f"expected column {name} to be complete, got {int(column.isna().sum())} missing values: fill the values or "
            "leave these rows out (in a CSV file, NA, None and null are missing values, but for names of clients and "
            "domains)"
        )
    try:
        values = sorted(column.unique().tolist())
    except TypeError:  # such as integers and texts
        raise ConfigurationError(
            f"expected column {name} to hold values of one type, got several: convert them to texts"
        ) from None
    looks: dict[str, str] = {}
    for text in [value for value in values if isinstance(value, str)]:
        other = looks.setdefault(unicodedata.normalize("NFC", text).strip(), text)
        if other != text:
            rank_zero_warn(f"{name}: {other!r} and {text!r} look the same and are two names: write them alike")
            break
    return values


def positions(column: Series[Any], values: Sequence[Any]) -> NDArray[np.int64]:
    """Return the position (n,) of each entry of a column among some values, also of 1 beside "1"; -1 for others."""
    import pandas as pd

    found = np.asarray(pd.Index(values).get_indexer(column), dtype=np.int64)
    if (found < 0).any():
        by_name = np.asarray(pd.Index([*map(str, values)]).get_indexer(pd.Index(column.astype(str))), dtype=np.int64)
        found = np.maximum(found, by_name)
    found[column.isna().to_numpy()] = -1
    return found


def in_both(train: Series[Any], test: Series[Any], name: str) -> tuple[Series[str], Series[str]]:
    """Return the names in a column of the training and of the test table, as texts, written as in training.

    A warning counts the test rows whose names are not in the training table.

    Args:
        train: the column of the training table.
        test: the column of the test table.
        name: the column's name, for messages.

    Raises:
        ConfigurationError: as for :func:`distinct`.
    """
    import pandas as pd

    distinct(train, name)
    distinct(test, name)
    known = train.drop_duplicates()
    found = positions(test, known.tolist())
    is_new = found < 0
    texts = test.astype(str).to_numpy(dtype=object, copy=True)
    texts[~is_new] = known.astype(str).to_numpy(dtype=object)[found[~is_new]]
    if is_new.any():
        rank_zero_warn(
            f"{name}: expected train's names in test, got {is_new.sum()} of {len(test)} rows of others, such as "
            f"{texts[is_new][0]!r}: nothing trains on them"
        )
    return train.astype(str), pd.Series(texts, index=test.index)


def _is_bool(column: Series[Any]) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_bool_dtype(column))
