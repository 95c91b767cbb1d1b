"""HuggingFace with a tokenizer: a vocabulary of five words, texts cut off and filled up, classes, refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lib.words import tokenizer_folder

from fl_lightning import ConfigurationError
from fl_lightning.datamodules import HuggingFace

datasets: Any = pytest.importorskip("datasets")
pytest.importorskip("transformers")

ROWS = {"text": ["the cat", "the cat sees the cat", "cat"], "label": [1, 0, 1], "user": ["bo", "al", "bo"]}


def rows(**change: Any) -> Any:
    return datasets.Dataset.from_dict(ROWS | change)


@pytest.mark.parametrize("tokens", [{"pad_token": "[PAD]", "eos_token": "[END]"}, {"pad_token": "[END]"}, {}])
def test_texts_become_tokens(tmp_path: Path, tokens: dict[str, str]) -> None:
    """Filled up with -100, which is no token, whatever the tokenizer would take."""
    data = HuggingFace(rows(), rows(), client="user", tokenizer=tokenizer_folder(tmp_path, **tokens), length=3)
    assert data.client_names == ["al", "bo"]
    (words, labels), *rest = data.val_dataloader()
    assert not rest
    assert words.dtype == labels.dtype == torch.int64
    assert words.tolist() == [[0, 1, -100], [0, 1, 2], [1, -100, -100]]
    assert labels.tolist() == [1, 0, 1]
    (own,) = data.client_batches(0, torch.Generator())
    assert [part.tolist() for part in own] == [[[0, 1, 2]], [0]]
    counts = data.class_counts()
    assert counts is not None
    assert counts.tolist() == [[1, 0], [0, 2]]


def test_the_end_of_a_text_stays(tmp_path: Path) -> None:
    """Though the tokenizer fills up with the same token. Of a longer text it cuts off words, and keeps the end."""
    name = tokenizer_folder(tmp_path, ends=True, pad_token="[END]", eos_token="[END]")
    data = HuggingFace(rows(), num_clients=1, columns=["text"], tokenizer=name, length=4)
    examples: Any = data.client_dataset(0)
    (words,) = examples.dataset.tensors
    assert words.tolist() == [[0, 1, 4, -100], [0, 1, 2, 4], [1, 4, -100, -100]]


def test_columns_say_what_is_read(tmp_path: Path) -> None:
    both = rows(title=["cat", "the", "sees"])
    name = tokenizer_folder(tmp_path)
    for columns, expected in ((["title"], [[[1], [0], [2]]]), (["title", "label"], [[[1], [0], [2]], [1, 0, 1]])):
        data = HuggingFace(both, columns=columns, num_clients=1, tokenizer=name, length=1)
        examples: Any = data.client_dataset(0)
        assert [part.tolist() for part in examples.dataset.tensors] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"train": rows(title=["a", "b", "c"])},
            "expected one column of texts for tokenizer, got text, title among text",
        ),
        ({"columns": ["label"]}, "expected texts in column label, got 1: leave such examples out"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"tokenizer": "no/such"}, "got no/such: no such folder here, and no answer from the hub"),
    ],
)
def test_refuses_other_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    settings = {"train": rows(), "client": "user", "tokenizer": tokenizer_folder(tmp_path), **change}
    with pytest.raises(ConfigurationError, match=message) as caught:
        HuggingFace(**settings)
    assert "\n" not in str(caught.value)


LABELS = "expected classes from 0 in the column label of the {} set, got "
TITLES = "expected numbers in the column title of the {} set, got "


@pytest.mark.parametrize(
    ("change", "columns", "message"),
    [
        ({"label": ["p", "n", "p"]}, ["text", "label"], f"{LABELS}<U1 from n: name another column by label, or"),
        ({"label": [1, None, 0]}, ["text", "label"], f"{LABELS}1 missing values"),
        ({"label": [1, -1, 0]}, ["text", "label"], f"{LABELS}int64 from -1, 1 of 3 below 0"),
        ({"label": [0.5, 1.0, 0.0]}, ["text", "label"], f"{LABELS}float64 from 0.0"),
        ({"label": [[0], [1], [1]]}, ["text", "label"], "expected one value for each example in the column label of"),
        ({"title": ["a", "b", "c"]}, ["text", "title", "label"], f"{TITLES}values such as 'a': columns names one col"),
        ({"title": [0.5, None, 1.0]}, ["text", "title", "label"], f"{TITLES}1 missing values: columns names"),
        ({"title": [[1], [2, 3], []]}, ["text", "title", "label"], f"{TITLES}values such as [1]: columns names"),
        ({"title": [4, 5, 6]}, ["text", "title"], "expected texts, the responses, or classes in the column title, got"),
    ],
)
def test_refuses_what_is_no_class(tmp_path: Path, change: dict[str, Any], columns: list[str], message: str) -> None:
    name = tokenizer_folder(tmp_path)
    whole = rows(title=[0.5, 1.5, 2.5])
    for sets, split in (((rows(**change),), "train"), ((whole, rows(**change)), "test")):
        with pytest.raises(ConfigurationError) as caught:
            HuggingFace(*sets, client="user", tokenizer=name, columns=columns)
        assert str(caught.value).startswith(message.format(split))
        assert "\n" not in str(caught.value)


def test_a_test_set_of_texts_without_classes(tmp_path: Path) -> None:
    """Its batches would be of another form than training's. Without classes in training, none are read."""
    name = tokenizer_folder(tmp_path)
    bare = rows().remove_columns("label")
    with pytest.raises(ConfigurationError, match="expected columns label in the test set, too, got text, user: add"):
        HuggingFace(rows(), bare, client="user", tokenizer=name)
    (batch,) = HuggingFace(bare, rows(), client="user", tokenizer=name, length=1).val_dataloader()
    assert [part.tolist() for part in batch] == [[[0], [0], [1]]]


def test_numbers_beside_texts(tmp_path: Path) -> None:
    """Columns that are named, but not as that of the classes, may hold any numbers."""
    scores = rows(score=[0.5, 1.5, 2.5], both=[[0, 1], [1, 1], [1, 0]])
    columns = ["text", "score", "both"]
    data = HuggingFace(scores, scores, client="user", columns=columns, tokenizer=tokenizer_folder(tmp_path), length=1)
    (batch,) = data.val_dataloader()
    assert [part.tolist() for part in batch[1:]] == [[0.5, 1.5, 2.5], [[0, 1], [1, 1], [1, 0]]]
