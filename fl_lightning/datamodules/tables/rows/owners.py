"""Which rows of a test set are each client's own, by a column that names the clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn

from fl_lightning.datamodules.partition.steps.parts import Ints, Parts, rows_of
from fl_lightning.datamodules.tables.rows.names import positions
from fl_lightning.errors import ConfigurationError


def owners_of(values: Any, clients: Sequence[Any], column: str, may_be_none: bool) -> Ints:
    """Find the client of each row. A warning counts the rows of others, on which no client is evaluated.

    A row is a client's if it holds the client's value (1.0 beside 1), or the same text ("1" beside 1).

    Args:
        values: (n,) value of the column of clients for each row; a row without a value is nobody's.
        clients: each client's value.
        column: name of the column, for messages.
        may_be_none: whether no client need have a row.

    Returns:
        (n,) position of each row's client among ``clients``; -1 for nobody's.

    Raises:
        ConfigurationError: there are rows, no row is a client's, and ``may_be_none`` is false.
    """
    import pandas as pd

    entries = pd.Series(values)
    owners = positions(entries, clients)
    if strangers := int((owners < 0).sum()):
        (example,) = entries.iloc[[int(np.argmin(owners))]].tolist()
        came = f"expected train's clients in test, got {strangers} of {len(owners)} rows of others, such as {example!r}"
        if strangers == len(owners) and not may_be_none:
            raise ConfigurationError(f"{column}: {came}: write clients alike, or leave the column out of test")
        rank_zero_warn(f"{column}: {came}: clients are evaluated without these rows")
    return owners


def own_rows(values: Any, clients: Sequence[Any], column: str) -> Parts:
    """Find each client's own rows, of which there may be none; see :func:`owners_of`."""
    owners = owners_of(values, clients, column, may_be_none=True)
    rows = np.flatnonzero(owners >= 0)
    return rows_of(owners[rows], len(clients)).among(torch.from_numpy(rows))
