"""The test rows of each client, by a column: 1.0 and "1" are 1, nothing is nobody, and others are counted."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fl_lightning.datamodules.tables.rows.owners import own_rows, owners_of
from fl_lightning.errors import ConfigurationError


@pytest.mark.parametrize("values", [[2, 1, 2], [2.0, 1.0, 2.0], ["2", "1", "2"], pd.Series([2, 1, 2], index=[7, 7, 9])])
def test_rows_of_each_client(values: Any) -> None:
    parts = own_rows(values, [1, 2, 3], "user")
    assert [part.tolist() for part in parts] == [[1], [0, 2], []]


def test_rows_of_others_are_counted() -> None:
    with pytest.warns(UserWarning, match="rows of others") as caught:
        parts = own_rows(["rome ", "rome", None], ["None", "rome"], "city")
    assert [part.tolist() for part in parts] == [[], [1]]
    (warning,) = caught
    assert str(warning.message) == (
        "city: expected train's clients in test, got 2 of 3 rows of others, such as 'rome ': clients are evaluated "
        "without these rows"
    )


def test_others_alone() -> None:
    """A table is refused; a data set of the hub may be tested on other people."""
    numbers = np.array([1.5, 2.5])
    with pytest.raises(ConfigurationError, match=r"^city: expected train's clients in test, got 2 of 2 rows .* 1\.5"):
        owners_of(numbers, [1, 2], "city", may_be_none=False)
    with pytest.warns(UserWarning, match="got 2 of 2 rows of others"):
        parts = own_rows(numbers, [1, 2], "city")
    assert parts.sizes.tolist() == [0, 0]
    assert owners_of([], [1, 2], "city", may_be_none=False).tolist() == []
