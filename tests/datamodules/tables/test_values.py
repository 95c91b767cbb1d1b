"""What the library lets pass in a Hugging Face data set, and what HuggingFace says of it, in one line."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fl_lightning.datamodules import Dirichlet, DomainDirichlet, HuggingFace, Natural
from fl_lightning.errors import ConfigurationError

datasets: Any = pytest.importorskip("datasets")
NAMES = ["ant", "bee", "cat"]
OTHERS = ["bee", "cat", "ant"]
TEXT = datasets.Value("string")


def rows(**change: Any) -> Any:
    """Six rows of three users; None for a column leaves it out."""
    own = {
        "x": [[float(row), 1.0] for row in range(6)],
        "label": [0, 1, 2] * 2,
        "user": ["rome", "oslo", "rome", "bern", "oslo", "rome"],
    } | change
    return datasets.Dataset.from_dict({name: values for name, values in own.items() if values is not None})


def named(names: list[str], table: Any = None, column: str = "label") -> Any:
    """The rows with a column of type ClassLabel, whose numbers stay."""
    return (rows() if table is None else table).cast_column(column, datasets.ClassLabel(names=names))


def pictures(labels: list[Any], names: list[str] | None = None) -> Any:
    kind = datasets.Value("int64") if names is None else datasets.ClassLabel(names=names)
    images = [Image.fromarray(np.full((4, 4), row, np.uint8)) for row in range(len(labels))]
    features = datasets.Features(image=datasets.Image(), label=kind)
    return datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)


def line(*tables: Any, **settings: Any) -> str:
    """The one line with which a data set is refused when it is made or loaded."""
    with pytest.raises(ConfigurationError) as caught:
        HuggingFace(*tables, **settings).setup("fit")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def own_labels(data: HuggingFace) -> list[list[int]]:
    """The labels of each client's own test examples."""
    found: list[list[int]] = []
    for client in range(data.num_clients):
        found.append([label for batch in data.held_out_batches(client) for label in batch["label"].tolist()])
    return found


# Names of classes


@pytest.mark.parametrize("made", [named, lambda names: pictures([0, 1, 2], names)])
def test_other_names_of_the_classes_are_refused(made: Any) -> None:
    """Class 0 is an ant in training and a bee in the test set, and the library compares numbers."""
    expected = (
        "expected class 0 of the column label in the {} set to be ant, as in the train set, got bee: renumber the "
        "classes by their names with align_labels_with_mapping, or keep their numbers with cast_column"
    )
    assert line(made(NAMES), made(OTHERS), num_clients=2) == expected.format("test")
    assert line({"train": made(NAMES), "validation": made(OTHERS)}, num_clients=2) == expected.format("test")
    splits = {"train": made(NAMES), "validation": made(OTHERS), "test": made(NAMES)}
    assert line(splits, num_clients=2) == expected.format("val")
    assert line(made(NAMES), made(OTHERS), num_clients=2, test_share=0.5) == expected.format("test")


def test_the_advice_ends_in_the_right_numbers() -> None:
    """By their names, the test set's 0, 1, 2 are 1, 2, 0 in training; by their numbers, they stay."""
    by_name = {name: number for number, name in enumerate(NAMES)}
    for test, expected in (
        (named(OTHERS).align_labels_with_mapping(by_name, "label"), [1, 2, 0] * 2),
        (named(OTHERS).cast_column("label", named(NAMES).features["label"]), [0, 1, 2] * 2),
    ):
        (batch,) = HuggingFace(named(NAMES), test, num_clients=2).val_dataloader()
        assert batch["label"].tolist() == expected


def test_names_of_other_columns_and_within_lists() -> None:
    train, test = (named(names, column="label").rename_column("label", "kind") for names in (NAMES, OTHERS))
    assert "expected class 0 of the column kind in the test set to be ant" in line(train, test, num_clients=1)
    HuggingFace(train, test, num_clients=1, columns=["x"])
    tags = []
    for names in (["O", "B"], ["B", "O"]):
        kinds = datasets.Features(tags=datasets.List(datasets.ClassLabel(names=names)))
        tags.append(datasets.Dataset.from_dict({"tags": [[0, 1], [1, 0]]}, features=kinds))
    assert "expected class 0 of the column tags in the test set to be O" in line(*tags, num_clients=1)
    train, test = (named(names, rows(user=[0, 1] * 3), "user") for names in (["al", "bo"], ["bo", "al"]))
    assert "expected class 0 of the column user in the test set to be al" in line(train, test, client="user")


def test_one_set_may_have_more_classes() -> None:
    """As long as each number has one name, and training names the class of each test example."""
    more = [*NAMES, "dog"]
    for train, test in ((named(NAMES), named(more)), (named(more), named(NAMES)), (named(NAMES), rows())):
        (batch,) = HuggingFace(train, test, num_clients=2).val_dataloader()
        assert batch["label"].tolist() == [0, 1, 2] * 2
    dogs = named(more, rows(label=[0, 1, 3] * 2))
    expected = "expected classes from 0 in the column label of the test set, got class 3, where the train set has 3"
    assert line(named(NAMES), dogs, num_clients=2).startswith(expected)
    assert line(pictures([0, 1, 2], NAMES), pictures([0, 3]), num_clients=2).startswith(expected)


def test_files_of_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads the test file with the names of the training file, and the numbers stay."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "my"
    folder.mkdir()
    for split, names in (("train", NAMES), ("test", OTHERS)):
        named(names).to_parquet(folder / f"{split}.parquet")
    said = line(str(folder), num_clients=2)
    assert said.startswith(f"expected class 0 of the column label in the file {folder}/test.parquet to be ant, as in")
    named(NAMES).to_parquet(folder / "test.parquet")
    assert HuggingFace(str(folder), num_clients=2).num_classes == 3


# Classes that are missing, unknown, or of another kind


@pytest.mark.parametrize(
    ("labels", "got"),
    [
        ([0, None, 1], "1 missing values: leave these examples out"),
        ([0, -1, -1], "int64 from -1, 2 of 3 below 0: leave these examples out"),
        ([0.5, 1.0, 0.0], "float64 from 0.0: name another column by label, or convert it with class_encode_column"),
        ([float("nan"), 1.0, 0.0], "1 missing values: leave"),
        (["n", "p", "n"], "<U1 from n: name another column by label, or convert it with class_encode_column"),
        (["n", None, "p"], "1 missing values: leave"),
    ],
)
def test_labels_of_images_that_are_no_classes(labels: list[Any], got: str) -> None:
    images = [Image.fromarray(np.zeros((4, 4), np.uint8)) for _ in labels]
    kinds = datasets.Dataset.from_dict({"label": labels}).features
    features = datasets.Features(image=datasets.Image(), **kinds)
    table = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    for sets, split in (((table,), "train"), ((pictures([0, 1]), table), "test")):
        assert line(*sets, num_clients=1).startswith(
            f"expected classes from 0 in the column label of the {split} set, got {got}"
        )


@pytest.mark.parametrize("labels", [[[0], [1], [1]], [[0], [1, 0], []]])
def test_lists_are_no_classes(labels: list[list[int]]) -> None:
    """They are part of an example, for a module that wants them, and nothing to deal images or texts by."""
    table = rows(label=labels * 2)
    data = HuggingFace(table, client="user")
    assert data.class_counts() is None
    assert data.client_dataset(0)[0]["label"].tolist() == labels[0]
    assert line(table, num_clients=2, partition=Dirichlet(0.5)).startswith(
        "expected one value for each example in the column label of the train set, got List(Value('int64'))"
    )


def test_a_partition_by_label_needs_labels() -> None:
    fractions = rows(label=[0.5, 1.5, 2.0] * 2)
    assert line(fractions, num_clients=2, partition=Dirichlet(0.5)) == (
        "expected column label to hold integers or texts, got float64: convert them"
    )
    signs = HuggingFace(rows(label=[-1, 1] * 3), num_clients=2, partition=Dirichlet(0.5))  # integers, of two values
    counts = signs.class_counts()
    assert counts is not None
    assert counts.sum(0).tolist() == [3, 3]


def test_an_unknown_class_is_refused() -> None:
    """-1 in a column of type ClassLabel; as a plain integer, -1 is what the user makes of it."""
    table = named(NAMES, rows(label=[0, 1, -1] * 2))
    expected = "expected classes from 0 in the column label of the {} set, got int64 from -1, 2 of 6 below 0"
    assert line(table, client="user").startswith(expected.format("train"))
    assert line(named(NAMES), table, client="user").startswith(expected.format("test"))
    assert line(table, num_clients=2, columns=["x"], partition=Dirichlet(0.5)).startswith(expected.format("train"))
    data = HuggingFace(table, client="user", columns=["x"])  # its classes are not read
    assert data.class_counts() is None
    HuggingFace(rows(label=[0, 1, -1] * 2), client="user").setup("fit")


def test_a_test_set_without_any_class_is_left_out() -> None:
    """As that of GLUE: validation serves to test, too, where there is one."""
    unknown = named(NAMES, rows(label=[-1] * 6))
    train, some = named(NAMES), named(NAMES).select([1])
    with pytest.warns(UserWarning, match="none of the 6 test examples has a known class: the validation set serves"):
        data = HuggingFace({"train": train, "validation": some, "test": unknown}, client="user")
    (batch,) = data.test_dataloader()
    assert batch["label"].tolist() == [1]
    assert "6 of 6 below 0" in line({"train": train, "test": unknown}, client="user")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = HuggingFace({"train": train, "validation": some, "test": unknown}, client="user", columns=["x"])
    (batch,) = data.test_dataloader()
    assert len(batch[0]) == 6


@pytest.mark.parametrize("label", [["a", "b", "c"] * 2, [0.5] * 6, [[0], [1]] * 3])
def test_a_test_set_of_another_kind(label: list[Any]) -> None:
    said = line(rows(), rows(label=label), client="user")
    assert said.startswith("expected the column label of the test set to be Value('int64'), as in the train set, got ")
    assert HuggingFace(rows(), rows(label=label), client="user", columns=["x"]).num_clients == 3


# Missing values


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"x": [1.0, None] * 3}, "x"),
        ({"x": [1, None] * 3}, "x"),
        ({"x": [[1.0, None], [2.0, 3.0]] * 3}, "x"),
        ({"x": [[1.0, 2.0], None] * 3}, "x"),
        ({"x": ["a", None] * 3}, "x"),
        ({"label": [0, None] * 3}, "label"),
        ({"label": [0.5, None] * 3}, "label"),
    ],
)
def test_missing_values_are_refused(change: dict[str, Any], column: str) -> None:
    """The library makes nan of missing numbers, and training goes on."""
    said = line(rows(**change), client="user")
    assert said.startswith(f"expected column {column} of the train set to be complete, got 3 missing values: fill the")
    whole = {name: [value if value is not None else values[0] for value in values] for name, values in change.items()}
    filled = {name: [[1.0, 2.0]] * 6 if "None" in str(values) else values for name, values in whole.items()}
    said = line(rows(**filled), rows(**change), client="user")
    assert f"column {column} of the test set" in said


def test_missing_values_that_are_nobodys_business() -> None:
    """In rows that were filtered out, in other columns, in a data set with a format or a function of its own."""
    table = rows(x=[1.0, None] * 3, note=["a", None] * 3)
    kept = table.filter(lambda row: row["x"] is not None)
    assert HuggingFace(kept, client="user").sizes.sum() == 3
    HuggingFace(table, client="user", columns=["label"]).setup("fit")
    (batch,) = HuggingFace(table.remove_columns("note").with_format("torch"), num_clients=1).client_batches(
        0, torch.Generator()
    )
    assert batch["x"].isnan().sum() == 3
    HuggingFace(rows(note=["a", None] * 3), client="user", collate_fn=list).setup("fit")
    assert "column x of" in line(table, client="user", collate_fn=list)  # nan before the function sees the values


def test_missing_values_of_arrays() -> None:
    table = datasets.Dataset.from_dict({"x": [[[1.0, 2.0]], [[3.0, None]]]})
    arrays = table.cast_column("x", datasets.Array2D((1, 2), "float32"))
    assert "expected column x of the train set to be complete, got 1 missing values" in line(arrays, num_clients=1)


# Clients and domains


@pytest.mark.parametrize(
    ("users", "said"),
    [
        (["rome", None] * 3, "expected column user of the train set to be complete, got 3 missing values"),
        ([1, None] * 3, "expected column user of the train set to be complete, got 3 missing values"),
        ([1.0, 2.0] * 3, "expected column user to hold integers or texts, got float64: convert them"),
        ([[0, 1], [2, 3], [4, 5]] * 2, "expected one value for each example in the column user of the train set, got"),
        ([[1], [2, 3]] * 3, "expected one value for each example in the column user of the train set, got List"),
        ([{"a": 1}] * 6, "expected one value for each example in the column user of the train set, got {'a': Value"),
    ],
)
def test_what_names_no_client(users: list[Any], said: str) -> None:
    """Lists of integers were taken for a partition: one client for each example, with the examples of the list."""
    table = rows(user=users)
    assert line(table, client="user").startswith(said)
    if users[1] is not None:  # which is refused as a part of the examples
        assert line(table, partition=Natural("user")).startswith(said)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"client": "user"},
        {"client": "user", "test_share": 0.5},
        {"client": "user", "leave_out": ["a"]},
        {"partition": DomainDirichlet(1.0)},
    ],
)
def test_examples_without_a_domain(settings: dict[str, Any]) -> None:
    table = rows(style=["a", None, "b"] * 2)
    said = "expected column style of the {} set to be complete, got 2 missing values: fill the values or leave these"
    assert line(table, domain="style", **settings).startswith(said.format("train"))
    assert line(rows(style=["a", "c", "b"] * 2), table, domain="style", **settings).startswith(said.format("test"))


@pytest.mark.parametrize(
    ("train", "test", "own", "said"),
    [
        ([1, 2] * 3, [1.0, 2.0] * 3, [[0, 2, 1], [1, 0, 2]], None),
        ([1, 2] * 3, ["1", "2"] * 3, [[0, 2, 1], [1, 0, 2]], None),
        (["rome", "oslo"] * 3, ["rome ", "oslo"] * 3, [[1, 0, 2], []], "3 of 6 rows of others, such as 'rome '"),
        (["rome", "oslo"] * 3, ["ROME", "oslo"] * 3, [[1, 0, 2], []], "3 of 6 rows of others, such as 'ROME'"),
        (["1", "2"] * 3, [1.0, 2.0] * 3, [[], []], "6 of 6 rows of others, such as 1.0"),
        (["None", "oslo"] * 3, [None, "oslo"] * 3, [[], [1, 0, 2]], "3 of 6 rows of others"),
    ],
)
def test_test_examples_of_clients_that_are_written_otherwise(
    train: list[Any], test: list[Any], own: list[list[int]], said: str | None
) -> None:
    """The labels of the six test rows are 0, 1, 2, 0, 1, 2: those of the first user have 0, 2, 1."""
    data = HuggingFace(rows(user=train), rows(user=test), client="user")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert own_labels(data) == own
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (said is not None)
    for message in messages:
        assert message.startswith(f"user: expected train's clients in test, got {said}")


def test_clients_that_were_left_out_are_no_strangers() -> None:
    """The user bern is of the domain that does not train, by the user's own word."""
    table = rows(style=["a", "a", "a", "b", "a", "a"])
    data = HuggingFace(table, table, client="user", domain="style", leave_out=["b"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own_labels(data) == [[1, 1], [0, 2, 2]]


def test_columns_that_the_test_set_lacks() -> None:
    images = pictures([0, 1])
    said = "expected columns {} in the test set, too, got {}: add them, or leave this set out"
    assert line(images, images.remove_columns("label"), num_clients=1) == said.format("label", "image")
    assert line(images, images.remove_columns("image"), num_clients=1) == said.format("image", "label")
    assert line(images, [1], num_clients=1).startswith("expected a datasets.Dataset")
