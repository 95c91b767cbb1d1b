"""HuggingFace: data sets made in memory, by a client column and by a partition."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.command import run
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning.datamodules import ClassesPerClient, HuggingFace, Natural
from fl_lightning.errors import ConfigurationError

datasets: Any = pytest.importorskip("datasets")
ROWS = {
    "x": [[float(i), 1.0] for i in range(6)],
    "label": [0, 1, 2, 0, 1, 2],
    "user": ["rome", "oslo", "rome", "bern", "oslo", "rome"],
}


def rows(**change: Any) -> Any:
    return datasets.Dataset.from_dict(ROWS | change)


def firsts(data: HuggingFace) -> list[list[float]]:
    """The first feature of each client's examples."""
    parts: list[Any] = [data.client_dataset(client) for client in range(data.num_clients)]
    return [[float(part[i]["x"][0]) for i in range(len(part))] for part in parts]


def test_clients_of_a_column() -> None:
    data = HuggingFace(rows(), client="user", batch_size=4)
    assert data.client_names == ["bern", "oslo", "rome"]
    assert firsts(data) == [[3], [1, 4], [0, 2, 5]]
    counts = data.class_counts()
    assert counts is not None
    assert counts.tolist() == [[1, 0, 0], [0, 2, 0], [1, 0, 2]]
    (batch,) = data.client_batches(1, torch.Generator())
    assert set(batch) == {"x", "label"}
    assert (batch["x"].dtype, sorted(batch["x"][:, 0].tolist())) == (torch.float32, [1, 4])
    assert batch["label"].tolist() == [1, 1]
    (pair,) = HuggingFace(rows(), client="user", columns=["x", "label"]).client_batches(0, torch.Generator())
    assert [part.tolist() for part in pair] == [[[3, 1]], [0]]


def test_a_partition_by_label() -> None:
    data = HuggingFace(rows(), num_clients=3, partition=ClassesPerClient(1))
    assert sorted(map(sorted, firsts(data))) == [[0, 3], [1, 4], [2, 5]]
    other = HuggingFace(
        rows().rename_column("label", "kind"), label="kind", num_clients=3, partition=ClassesPerClient(1)
    )
    assert firsts(other) == firsts(data)
    unclassed = HuggingFace(rows(label=[0.5] * 6), num_clients=2)  # does not stop a partition that needs no classes
    assert unclassed.sizes.tolist() == [3, 3]
    assert unclassed.class_counts() is None


def test_texts_of_different_length() -> None:
    def pad(examples: list[dict[str, Any]]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([example["ids"] for example in examples])

    data = HuggingFace(datasets.Dataset.from_dict({"ids": [[1], [2, 3], [4, 5, 6]]}), num_clients=1, collate_fn=pad)
    (batch,) = data.client_batches(0, torch.Generator())
    assert batch.shape == (3, 3)


def test_the_data_sets_own_transform_stays() -> None:
    own = rows().with_transform(lambda batch: {"x": [torch.tensor(x) * 100 for x in batch["x"]]})
    assert firsts(HuggingFace(own, partition=[[2], [0, 1]])) == [[200], [0, 100]]


@pytest.mark.parametrize(
    ("splits", "val", "test"),
    [(["test"], 1, 1), (["validation"], 1, 1), (["validation", "test"], 1, 2), ([], None, None)],
)
def test_splits_of_a_folder(tmp_path: Path, splits: list[str], val: int | None, test: int | None) -> None:
    """The first split has one row, the second two."""
    whole = {"train": rows()} | {name: rows().select(range(i + 1)) for i, name in enumerate(splits)}
    datasets.DatasetDict(whole).save_to_disk(tmp_path / "my")
    data = HuggingFace(str(tmp_path / "my"), client="user")
    for name, size in (("val_dataloader", val), ("test_dataloader", test)):
        if size is None:
            assert not is_overridden(name, data)
        else:
            (batch,) = getattr(data, name)()
            assert len(batch["label"]) == size
            assert set(batch) == {"x", "label"}


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows().save_to_disk("my")
    model = ["--model.client=ImageClassifier", "--model.client.network=TwoNN"]
    shown = run("data", *model, "--data=HuggingFace", "--data.train=my", "--data.client=user")
    assert "6 training examples; 3 of 3 clients" in shown.out, shown.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client": "writer"}, "expected columns writer, got x, label, user: choose among these"),
        ({"client": "user", "columns": ["image"]}, "expected columns image, got x, label, user"),
        ({"client": "user", "partition": [[0]]}, "expected client or partition, got both, with client=user"),
        ({}, "expected num_clients, a stated partition, or Natural or DomainDirichlet with a column, got none"),
        ({"train": {"training": rows()}}, "expected a split train, got training: rename a split"),
        (
            {"train": {"train": rows(), "dev": rows()}, "test": rows()},
            "expected test or a split to test on, got test and the split dev: leave one out",
        ),
        ({"train": [1, 2]}, r"expected a datasets.Dataset \(pip install 'fl-lightning\[huggingface\]'\), got list"),
        ({"train": rows().to_iterable_dataset()}, "expected the data set to be .* got IterableDataset"),
        ({"train": "nowhere"}, r"expected a folder, .* \(owner/name\), got .*nowhere, which does not exist: point"),
    ],
)
def test_refuses_other_data(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        HuggingFace(**{"train": rows()} | change)
    assert "\n" not in str(caught.value)


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(ConfigurationError, match=r"needs datasets: pip install 'fl-lightning\[huggingface\]'$"):
        HuggingFace("my_folder", client="user")


def test_classes_are_no_groups() -> None:
    """A natural partition goes by a column that is named; labels were taken for groups."""
    data = HuggingFace(rows(), num_clients=2, partition=Natural())
    with pytest.raises(ConfigurationError, match="HuggingFace knows no groups: choose another partition"):
        data.setup("fit")
