"""What the pages about data show runs as printed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_lightning.datamodules import Natural, Tensors

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "how-to" / "own-data.md", DOCS / "reference" / "partitions.md")
ARRAYS, OWN, SPIRALS, ORDINARY, TABLE, HUGGING_FACE, FLOWER, NAMED, TEXTS, WORLD = (
    text for page in PAGES for text in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
)


@pytest.fixture
def ordinary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the block of ordinary data defines, whose data module is in a file of its own."""
    (tmp_path / "my_data.py").write_text(SPIRALS)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    exec(ORDINARY, names)
    return names


def test_own_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 examples on 10 clients; the file holds the same."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(ARRAYS, names)
    assert names["data"].class_counts().sum() == 500
    same = Tensors("my.npz", num_clients=10, partition=names["data"].partition)
    assert np.array_equal(same.class_counts(), names["data"].class_counts())


def test_own_class() -> None:
    """1,000 images by 20 makers of 50."""
    names: dict[str, Any] = {}
    exec(OWN, names)
    data = names["Noise"](num_clients=20, partition=Natural())
    assert data.sizes.tolist() == [50] * 20
    inputs, _ = data.on_after_batch_transfer(next(iter(data.val_dataloader())), 0)
    assert abs(inputs.mean()) < 0.05
    assert abs(inputs.std() - 1) < 0.05


def test_ordinary_data(ordinary: dict[str, Any]) -> None:
    """A data module on five clients, six rows on two: rows 1, 3 and 4 are Oslo's. Texts in batches of three."""
    names = ordinary
    assert names["data"].sizes.sum() == 90
    assert names["data"].batch_size == 16
    assert names["pair"].sizes.tolist() == [3, 3]
    assert names["cities"].client_names == ["oslo", "rome"]
    assert names["cities"].client_dataset(0).indices.tolist() == [1, 3, 4]
    exec(TEXTS, names)
    (batch,) = names["padded"].client_batches(0, names["torch"].Generator())
    assert batch.shape[1] == 3


def test_table() -> None:
    """Of one, two and three rows, 0, 1 and 1 are held back."""
    names: dict[str, Any] = {}
    exec(TABLE, names)
    assert names["data"].client_names == ["bern", "oslo", "rome"]
    assert names["data"].sizes.tolist() == [1, 1, 2]


def test_names(ordinary: dict[str, Any]) -> None:
    exec(NAMED, ordinary)
    data = ordinary["Cities"]()
    assert data.sizes.tolist() == [8, 8]
    assert data.client_label(1) == "1 (rome)"


def test_hugging_face_and_flower() -> None:
    """Four rows are bo's, two each al's and cy's."""
    pytest.importorskip("datasets")
    names: dict[str, Any] = {}
    exec(HUGGING_FACE, names)
    assert names["writers"].client_names == ["al", "bo", "cy"]
    assert names["writers"].sizes.tolist() == [2, 4, 2]
    assert names["skewed"].sizes.sum() == 8
    pytest.importorskip("flwr_datasets")
    exec(FLOWER, names)
    assert names["data"].sizes.sum() == 8


def test_a_world_of_ones_own() -> None:
    names: dict[str, Any] = {}
    exec(WORLD, names)
    world = names["Weekdays"](deadline=40)
    assert [bool(world.present(3, round, seed=0).all()) for round in range(1, 9)] == [True] * 4 + [False] * 2 + [
        True
    ] * 2
