"""FLBench: examples by FL-bench's partition, and what is refused."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.image_files import write_idx

from fl_lightning.datamodules import FLBench
from fl_lightning.errors import ConfigurationError

# Client 0 trains on row 2 and tests on 0; client 1 trains on 1 and 3, and neither uses row 4, for validation.
PARTS: list[Any] = [
    {"train": np.array([2], dtype=np.int32), "val": np.array([4]), "test": np.array([0])},
    {"train": [1, 3], "val": [], "test": []},
]


def write(root: Path, data: Any, parts: Any = PARTS) -> FLBench:
    """Write the three files as FL-bench does."""
    np.save(root / "data.npy", data)
    np.save(root / "targets.npy", np.arange(5))
    partition = {"separation": {"train": [0, 1], "val": [0, 1], "test": [0, 1], "total": 2}, "data_indices": parts}
    (root / "partition.pkl").write_bytes(pickle.dumps(partition))
    return FLBench(str(root))


def test_examples_by_the_partition(tmp_path: Path) -> None:
    data = write(tmp_path, np.arange(10.0).reshape(5, 2) + 0.5)
    assert data.client_names == ["0", "1"]
    assert data.load(True)[0].tolist() == [[4.5, 5.5], [2.5, 3.5], [6.5, 7.5]]
    assert data.load(True)[1].tolist() == [2, 1, 3]
    assert data.load(False)[1].tolist() == [0]
    assert (data.clients(True), data.clients(False)) == (["0", "1", "1"], ["0"])


def test_femnist_s_vectors_and_celeba_s_images(tmp_path: Path) -> None:
    """Vectors of 784 floats, and bytes (n, H, W, 3), whose channels come first here."""
    images, _ = write(tmp_path, np.full((5, 784), 51 / 255)).load(True)
    assert images.shape == (3, 1, 28, 28)
    assert images.unique().tolist() == [51]
    colours = np.zeros((5, 4, 6, 3), dtype=np.uint8)
    colours[:, 1, 2] = [7, 8, 9]
    images, _ = write(tmp_path, colours).load(True)
    assert (images.shape, images.dtype) == ((3, 3, 4, 6), torch.uint8)
    assert images[0, :, 1, 2].tolist() == [7, 8, 9]


def test_other_bytes_and_whole_numbers_need_a_meaning(tmp_path: Path) -> None:
    grey = np.zeros((5, 28, 28, 1), dtype=np.uint8)
    with pytest.raises(ConfigurationError, match=r"got uint8 \(3, 28, 28, 1\): set inputs to images \(n, C, H, W"):
        write(tmp_path, grey).setup("fit")
    assert FLBench(str(tmp_path), inputs="channels_last").load(True)[0].shape == (3, 1, 28, 28)
    colours = (np.arange(5 * 9 * 4 * 3) % 256).astype(np.uint8).reshape(5, 9, 4, 3)  # celeba's kind, or nine channels
    write(tmp_path, colours)
    assert FLBench(str(tmp_path)).load(True)[0].tolist() == colours[[2, 1, 3]].transpose(0, 3, 1, 2).tolist()
    assert FLBench(str(tmp_path), inputs="images").load(True)[0].tolist() == colours[[2, 1, 3]].tolist()
    with pytest.raises(ConfigurationError, match=r"got int64 \(3, 784\): set inputs to images, channels_last, tok"):
        write(tmp_path, np.zeros((5, 784), dtype=int)).setup("fit")


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """Row 4 is for validation, and client 2 has no rows."""
    data = write(tmp_path, np.zeros((5, 2)), [*PARTS, {"train": [], "test": []}])
    with (
        pytest.warns(UserWarning, match="^1 validation examples of .*partition.pkl are left out"),
        pytest.warns(UserWarning, match="^1 of 3 clients of .* have neither training nor test examples, such as 2"),
    ):
        assert data.client_names == ["0", "1"]


class Hostile:
    """Writes a file when its pickle is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def test_a_partition_that_would_run_code_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path, np.zeros((5, 2)), [{"train": Hostile(tmp_path / "marker")}])
    with pytest.raises(ConfigurationError, match=r"partition.pkl, got a pickle that asks for '(posix|nt).system'"):
        data.setup("fit")
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1]], "expected data_indices with the train and test of each client in .*, got something else"),
        (None, "expected data_indices with the train and test of each client in .*, got something else"),
        ([{"train": [5], "test": []}], "expected indices from 0 to 4 in .*, got 5 to 5 for client 0"),
        ([{"train": [0.5], "test": []}], "expected indices from 0 to 4 in .*, got 0.5 to 0.5 for client 0"),
        ([{"train": [0]}], "expected data_indices with the train and test of each client in .*, got something else"),
        ([{"train": [0, -1], "test": []}], "expected indices from 0 to 4 in .*, got -1 to 0 for client 0"),
        ([{"train": [0], "test": []}, {"train": [], "test": [1]}], "test examples alone for '1'"),
        ([{"train": [0], "test": []}], "expected examples in the training and the test set, got none in one"),
    ],
)
def test_other_partitions_are_refused(parts: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        write(tmp_path, np.zeros((5, 2)), parts).setup("fit")


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "data.npy").touch()
    data = FLBench(str(tmp_path))
    assert "got no targets.npy and no partition.pkl: point root to a data set" in str(data.missing())
    with pytest.raises(ConfigurationError, match=r"got no targets.npy and no partition.pkl"):
        data.setup("fit")
    assert write(tmp_path, np.zeros((5, 2))).missing() is None
    for name in ("data.npy", "partition.pkl"):
        write(tmp_path, np.zeros((5, 2)))
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(ConfigurationError, match=f"expected a readable file of arrays in {path}, got "):
            FLBench(str(tmp_path)).setup("fit")
    np.save(tmp_path / "data.npy", np.array([{}] * 5))
    with pytest.raises(ConfigurationError, match=r"expected a readable file of arrays in .*data.npy"):
        FLBench(str(tmp_path)).setup("fit")
    with pytest.raises(ConfigurationError, match="got 4 examples and 5 targets"):
        write(tmp_path, np.zeros((4, 2))).setup("fit")


def test_examples_that_torchvision_downloaded(tmp_path: Path) -> None:
    """FL-bench counts the three training images, of grey 0, 10 and 20, and then the two test images, of 30 and 40."""
    write(tmp_path, np.zeros((5, 2)))
    (tmp_path / "data.npy").unlink()
    greys = np.array([0, 10, 20, 30, 40], dtype=np.uint8)
    images = np.broadcast_to(greys[:, None, None], (5, 28, 28))
    labels = np.arange(5, dtype=np.uint8)
    folder = tmp_path / "FashionMNIST" / "raw"
    write_idx(folder, {"train": images[:3], "t10k": images[3:]}, {"train": labels[:3], "t10k": labels[3:]})
    data = FLBench(str(tmp_path))
    assert data.missing() is None
    with pytest.warns(UserWarning, match="3 of 60,000 training images"):
        inputs, targets = data.load(True)
    assert (inputs[:, 0, 0, 0].tolist(), targets.tolist()) == ([20, 10, 30], [2, 1, 3])
    assert data.load(False)[0].unique().tolist() == [0]
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    two = FLBench(str(tmp_path))
    assert "expected one data set in" in str(two.missing())
    with pytest.raises(ConfigurationError, match=r"one data set in .*, got MNIST and FashionMNIST: keep the one"):
        two.setup("fit")
    (tmp_path / "MNIST" / "raw").rmdir()
    (folder / "t10k-labels-idx1-ubyte").unlink()
    assert "FashionMNIST" in str(FLBench(str(tmp_path)).missing())
