"""Tensors: arrays of one's own, and what is refused."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fl_lightning.datamodules import Natural, RandomFlip, Tensors
from fl_lightning.engine.federation.batches import TrainingBatch
from fl_lightning.errors import ConfigurationError

X, Y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2], dtype=np.int32)
TRAIN, TEST = (X, Y), (X[:3] + 100, Y[:3])
ARRAYS: dict[str, Any] = {"train_x": X, "train_y": Y, "test_x": TEST[0], "test_y": TEST[1]}
BYTES = torch.tensor([51, 255], dtype=torch.uint8).view(2, 1, 1, 1)


def test_from_python() -> None:
    """Rows are whole: the second feature is the first plus one; float64 becomes the default type."""
    data = Tensors(train=TRAIN, test=TEST, num_clients=2, batch_size=4)
    assert data.num_classes == 3
    rows = torch.cat([data.client_dataset(k)[:][0] for k in range(2)])
    assert rows.dtype == torch.float32
    assert sorted(rows.tolist()) == X.tolist()
    ((inputs, labels),) = data.val_dataloader()
    assert inputs.tolist() == TEST[0].tolist()
    assert labels.tolist() == [0, 1, 2]
    batch = [inputs, labels]
    assert data.on_after_batch_transfer(batch, 0) is batch


def test_from_a_file(tmp_path: Path) -> None:
    """Groups may be names: they are numbered in sorted order."""
    np.savez(tmp_path / "my.npz", **ARRAYS, train_groups=np.array(["b", "a", "b", "c", "a", "b"]))
    data = Tensors(str(tmp_path / "my.npz"), num_clients=3, partition=Natural())
    groups = data.groups()
    assert groups is not None
    assert groups.tolist() == [1, 0, 1, 2, 0, 1]
    parts = sorted(sorted(data.client_dataset(k)[:][0][:, 0].tolist()) for k in range(3))
    assert parts == [[0, 4, 10], [2, 8], [6]]


def test_without_groups_there_is_nothing_natural(tmp_path: Path) -> None:
    np.savez(tmp_path / "my.npz", **ARRAYS)
    assert Tensors(str(tmp_path / "my.npz")).groups() is None
    with pytest.raises(ConfigurationError, match="Natural keeps groups together, but Tensors knows no groups"):
        Tensors(train=TRAIN, test=TEST, partition=Natural()).setup("fit")


def test_classes_are_counted_in_both_sets_or_given() -> None:
    more = (X[:3], np.array([0, 1, 6]))
    with pytest.warns(
        UserWarning, match="labels from 0 to 6 make 7 classes, 3 of them empty: number the labels from 0"
    ):
        assert Tensors(train=TRAIN, test=more).num_classes == 7
    assert Tensors(train=TRAIN, test=TEST, num_classes=9, num_clients=1).class_counts().tolist() == [
        [2, 2, 2] + [0] * 6
    ]
    with pytest.raises(ConfigurationError, match="labels from 0 to 2, got 0 to 6"):
        Tensors(train=TRAIN, test=more, num_classes=3).setup("fit")


def test_labels_from_1_leave_a_class_empty(tmp_path: Path) -> None:
    """NumPy counts three labels, of which the largest is 3: with class 0 there are four classes."""
    np.savez(tmp_path / "my.npz", **ARRAYS | {"train_y": Y + 1, "test_y": Y[:3] + 1})
    with pytest.warns(UserWarning, match="labels from 1 to 3 make 4 classes, 1 of them empty"):
        assert Tensors(str(tmp_path / "my.npz")).num_classes == len(np.bincount(Y + 1)) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Tensors(str(tmp_path / "my.npz"), num_classes=4).num_classes == 4
        assert Tensors(train=TRAIN, test=TEST).num_classes == len(np.unique(Y))


def test_numbers_too_large_for_the_default_type_are_refused() -> None:
    """1e39 is finite in float64, and inf in float32, in NumPy, too."""
    large = np.where(X == 3, 1e39, X)
    with np.errstate(over="ignore"):
        assert np.isinf(large.astype(np.float32)).sum() == 1
    with pytest.raises(ConfigurationError, match=r"train_x to be finite as torch.float32, got nan or inf in 1 rows"):
        Tensors(train=(large, Y), test=TEST).setup("fit")
    torch.set_default_dtype(torch.float64)
    try:
        assert Tensors(train=(large, Y), test=TEST).load(train=True)[0].tolist() == large.tolist()
    finally:
        torch.set_default_dtype(torch.float32)


def test_images_are_scaled_and_normalised_only_with_constants() -> None:
    """51 / 255 = 0.2; (0.2 - 0.1) / 0.5 = 0.2, (1 - 0.1) / 0.5 = 1.8."""
    pair = (BYTES, torch.tensor([0, 1]))
    for constants, expected in (({}, [0.2, 1.0]), ({"mean": (0.1,), "std": (0.5,)}, [0.2, 1.8])):
        data = Tensors(train=pair, test=pair, num_clients=1, **constants)  # type: ignore[arg-type]
        data.setup("fit")
        inputs, _ = data.on_after_batch_transfer([*data._dealt.evaluation.tensors], 0)
        assert inputs.flatten().tolist() == pytest.approx(expected)


def test_images_are_augmented() -> None:
    images = torch.tensor([[0, 255]], dtype=torch.uint8).view(1, 1, 1, 2)
    pair = (images, torch.tensor([0]))
    data = Tensors(train=pair, test=pair, num_clients=1, augment=RandomFlip(1.0))
    data.setup("fit")
    assert data.on_after_batch_transfer(TrainingBatch([*pair]), 0)[0].flatten().tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_y": Y.astype(float)}, r"expected train_y to be integer labels \(n,\).*torch.float64 \(6,\)"),
        ({"train_y": Y > 0}, "expected train_y to be integer labels .*torch.bool"),
        ({"train_y": Y[:, None]}, r"expected train_y .*\(6, 1\)"),
        ({"train_y": Y[:4]}, r"int64 labels \(6,\), one per example, got .* \(4,\)"),
        ({"train_y": Y - 1}, "labels from 0 to 2, got -1 to 1"),
        ({"train_x": X.astype(int)}, r"expected train_x to be floats .* got torch.int64 \(6, 2\)"),
        ({"train_x": X[:, 0]}, r"expected train_x to be floats \(n, ...\).* \(6,\)"),
        ({"train_x": X.astype(np.uint8)}, r"uint8 images \(n, C, H, W\), got torch.uint8 \(6, 2\)"),
        (
            {"train_x": np.where(X == 3, np.nan, X)},
            "expected train_x to be finite as torch.float32, got nan or inf in 1 rows",
        ),
        ({"test_x": TEST[0] * np.inf}, "expected test_x to be finite as torch.float32, got nan or inf in 3 rows"),
        ({"test_x": X[:3, :1]}, r"like the training inputs, torch.float32 \(2,\) each, got torch.float32 \(1,\)"),
        ({"train_x": X[:0], "train_y": Y[:0]}, "expected train_y to be integer labels .* n > 0"),
        ({"train_x": X.astype(str)}, "expected train_x to be an array of numbers, got <U"),
    ],
)
def test_refuses_other_arrays(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "my.npz", **ARRAYS | change)
    with pytest.raises(ConfigurationError, match=message) as caught:
        Tensors(str(tmp_path / "my.npz")).setup("fit")
    assert "\n" not in str(caught.value)


def test_images_and_floats_are_two_kinds() -> None:
    """Bytes become floats in [0, 1]; the floats of a test set would stay in [0, 255]."""
    images, labels = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])
    data = Tensors(train=(images, labels), test=(images.float(), labels), num_clients=1)
    with pytest.raises(ConfigurationError, match=r"like the training inputs, torch.uint8 .* each, got torch.float32"):
        data.setup("fit")


def test_bytes_whose_channels_come_last_are_told() -> None:
    labels = torch.tensor([0, 1])
    last, first = (torch.zeros(2, *shape, dtype=torch.uint8) for shape in ((8, 8, 3), (3, 8, 8)))
    data = Tensors(train=(last, labels), test=(last, labels), num_clients=1)
    with pytest.warns(UserWarning, match=r"^bytes \(2, 8, 8, 3\) are images of 8 channels and 8x3 pixels: transpose"):
        data.setup("fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tensors(train=(first, labels), test=(first, labels), num_clients=1).setup("fit")


@pytest.mark.parametrize("groups", [[1, 2], np.ones(6), np.ones((6, 1), dtype=int)])
def test_refuses_other_groups(groups: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"expected groups to be integers or strings \(6,\)"):
        Tensors(train=TRAIN, test=TEST, groups=groups, partition=Natural(), num_clients=1).setup("fit")


@pytest.mark.parametrize("content", [b"", b"no npz", None, "npy", "half", "objects"])
def test_refuses_other_files(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "my.npz"
    if content == "npy":
        with path.open("wb") as file:
            np.save(file, X)
    elif content == "half":
        np.savez(path, **ARRAYS)
        path.write_bytes(path.read_bytes()[:-100])
    elif content == "objects":
        np.savez(path, **ARRAYS | {"train_y": np.array([{"a": 1}] * 6)})
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"expected an npz file of plain arrays in {path}, got '.*numpy.savez"):
        Tensors(str(path)).setup("fit")


def test_names_the_arrays_that_are_expected(tmp_path: Path) -> None:
    np.savez(tmp_path / "my.npz", x_train=X, train_y=Y)
    with pytest.raises(
        ConfigurationError, match=r"expected train_x, train_y, test_x, test_y and .*, got train_y, x_train: rename"
    ):
        Tensors(str(tmp_path / "my.npz")).setup("fit")


@pytest.mark.parametrize(
    "arguments",
    [{}, {"path": "a.npz", "train": TRAIN, "test": TEST}, {"train": TRAIN}, {"path": "a.npz", "groups": [1]}],
)
def test_refuses_both_or_none(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"expected path .* or else train=\(inputs, labels\)"):
        Tensors(**arguments)


def test_constants_and_augmentation_are_for_images() -> None:
    for arguments in ({"mean": (0.1, 0.1), "std": (1.0, 1.0)}, {"augment": RandomFlip()}):
        with pytest.raises(ConfigurationError, match=r"expected uint8 images .* for mean, std and augment"):
            Tensors(train=TRAIN, test=TEST, **arguments).setup("fit")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expected mean and std > 0"):
        Tensors(train=TRAIN, test=TEST, mean=(0.1,))
    with pytest.raises(ConfigurationError, match="num_classes must be at least 1, got 0"):
        Tensors(train=TRAIN, test=TEST, num_classes=0)
