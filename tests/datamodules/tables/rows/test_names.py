"""Names of clients, domains and classes in a table: read as they are written, in one way."""

import csv
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pandas as pd
import pytest

from fl_lightning.datamodules import Table
from fl_lightning.errors import ConfigurationError

NAMES = ["01", "01", "1", "1", "NA", "NA"]


def rows(**columns: Any) -> dict[str, list[str]]:
    """Columns of six rows; what is not given is one client, one domain, and two classes."""
    standard = {"site": ["s"] * 6, "land": ["l"] * 6, "age": list("123456"), "ill": ["no", "yes"] * 3}
    return standard | columns


def write(path: Path, columns: dict[str, list[str]]) -> str:
    """Write a file by Python's csv module, which knows neither numbers nor missing values."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return str(path)


def table(train: Any, **settings: Any) -> Table:
    return Table(train, **{"target": "ill", "client": "site", "features": ["age"], "domain": "land"} | settings)


def sizes(data: Table) -> dict[str, int]:
    """The number of test rows of each domain."""
    return {name: sum(len(batch[0]) for batch in batches) for name, batches in data.domain_batches().items()}


def test_clients_and_domains_are_what_is_written(tmp_path: Path) -> None:
    """The csv module's own three texts, two rows each."""
    path = write(tmp_path / "my.csv", rows(site=NAMES, land=NAMES))
    with Path(path).open() as file:
        written = {row["land"] for row in csv.DictReader(file)}
    data = table(path, test=path)
    with pytest.warns(UserWarning, match="NA is taken for a name, not for a missing value"):
        assert data.client_names == sorted(written)
    assert data.sizes.tolist() == [2, 2, 2]
    assert sizes(data) == dict.fromkeys(sorted(written), 2)


def test_classes_are_what_is_written(tmp_path: Path) -> None:
    """01 is not 1; a class NA could be a label that is missing."""
    classes = ["01", "1", "01", "1", "01", "1"]
    data = table(write(tmp_path / "my.csv", rows(ill=classes)))
    assert data.class_names == ["01", "1"]
    assert data.client_dataset(0)[:][1].tolist() == [0, 1] * 3
    with pytest.raises(ConfigurationError, match="expected column ill to be complete, got 2 missing values"):
        table(write(tmp_path / "my.csv", rows(ill=["NA", "EU", "EU"] * 2))).setup("fit")
    numbers = table(write(tmp_path / "my.csv", rows(ill=["007", "7"] * 3)), task="regression")
    assert numbers.client_dataset(0)[:][1].tolist() == [7.0] * 6
    fractions = table(write(tmp_path / "my.csv", rows(ill=["1.50", "1.5"] * 3)))
    assert fractions.client_dataset(0)[:][1].tolist() == [1.5] * 6


@pytest.mark.parametrize("column", ["site", "land", "ill"])
def test_a_missing_name_is_refused(column: str, tmp_path: Path) -> None:
    path = write(tmp_path / "my.csv", rows(**{column: ["", *"abcde"]}))
    with pytest.raises(ConfigurationError, match=f"expected column {column} to be complete, got 1 missing values"):
        table(path).setup("fit")
    frame = pd.DataFrame(rows()).assign(age=1.5, **{column: ["a", None] * 3})
    with pytest.raises(ConfigurationError, match=f"expected column {column} to be complete, got 3 missing values"):
        table(frame).setup("fit")


def test_numbers_beside_texts_are_refused() -> None:
    frame = pd.DataFrame(rows()).assign(age=1.5, land=[1, "1"] * 3)
    with pytest.raises(ConfigurationError, match="expected column land to hold values of one type, got several"):
        table(frame).setup("fit")


@pytest.mark.parametrize("left_out", [[2], ["2"], (2,)])
def test_domains_to_leave_out_may_be_numbers(left_out: Any) -> None:
    frame = pd.DataFrame(rows()).assign(age=1.5, land=[1, 2, 2] * 2)
    data = table(frame, leave_out=left_out)
    assert (data.leave_out, data.sizes.tolist(), sizes(data)) == (["2"], [2], {"2": 4})


def test_one_domain_to_leave_out_is_still_a_list() -> None:
    with pytest.raises(ConfigurationError, match=r"leave_out must be a list of domains such as \[no\], got 'no'$"):
        table(pd.DataFrame(rows()), leave_out="no")


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        (["1", "2"], ["1.0", "2.0"], {"1": 3, "2": 3}),
        (["01", "1"], ["1", "1"], {"1": 6}),
        (["1.0", "2.0"], ["1", "2"], {"1.0": 3, "2.0": 3}),
    ],
)
def test_a_domain_of_the_test_table_is_the_same_as_in_training(
    train: list[str], test: list[str], expected: dict[str, int], tmp_path: Path
) -> None:
    first, second = (write(tmp_path / f"{name[0]}.csv", rows(land=name * 3)) for name in (train, test))
    assert sizes(table(first, test=second)) == expected


def test_a_domain_of_the_test_table_alone_is_told() -> None:
    frame = pd.DataFrame(rows()).assign(age=1.5, land=["no", "it"] * 3)
    data = table(frame, test=frame.assign(land=["no ", "it"] * 3))
    with pytest.warns(UserWarning, match="land: expected train's names in test, got 3 of 6 rows of others, .* 'no '"):
        data.setup("fit")
    assert sizes(data) == {"it": 3, "no ": 3}


@pytest.mark.parametrize("pair", [("rome", "rome "), tuple(normalize(form, "é") for form in ("NFC", "NFD"))])
def test_names_that_look_the_same_are_told(pair: tuple[str, str]) -> None:
    data = table(pd.DataFrame(rows()).assign(age=1.5, site=[*pair] * 3))
    with pytest.warns(UserWarning, match="site: .* look the same and are two names: write them alike"):
        assert data.client_names == sorted(pair)
