"""EMNIST and QMNIST, read from small files of torchvision's format made here."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fl_lightning.datamodules import EMNIST, MNIST, QMNIST, Natural
from fl_lightning.errors import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore:.*may be half unpacked")
LABELS = {"train": [1, 26, 3, 3], "test": [2, 1]}
# Class, HSF series, writer, digit of this writer, NIST class, global number, two zeros; writer 2100 has three images.
WRITERS = [2100, 7, 2100, 326, 2100, 7]


def write_emnist(root: Path, split: str, labels: dict[str, list[int]]) -> None:
    """Blank images but for one pixel in row 3, column 9 of the file."""
    folder = root / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    for part, found in labels.items():
        pixels = np.zeros((len(found), 28, 28), dtype=np.uint8)
        pixels[:, 3, 9] = 77
        header = struct.pack(">4i", 0x0803, *pixels.shape)
        (folder / f"emnist-{split}-{part}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        header = struct.pack(">2i", 0x0801, len(found))
        (folder / f"emnist-{split}-{part}-labels-idx1-ubyte").write_bytes(header + bytes(found))


def write_qmnist(root: Path) -> None:
    """Six images to train on, two to test on; the extended labels are rows of 8 big-endian 32-bit integers."""
    folder = root / "QMNIST" / "raw"
    folder.mkdir(parents=True)
    for split, writers in (("train", WRITERS), ("test", [2599, 0])):
        pixels = np.arange(len(writers) * 784, dtype=np.uint32).astype(np.uint8).reshape(-1, 28, 28)
        header = struct.pack(">4i", 0x0803, *pixels.shape)
        (folder / f"qmnist-{split}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        rows = [[k % 10, 4, writer, k, 30 + k % 10, 1000 + k, 0, 0] for k, writer in enumerate(writers)]
        header = struct.pack(">3i", 0x0C02, len(rows), 8)
        (folder / f"qmnist-{split}-labels-idx2-int").write_bytes(header + np.array(rows, dtype=">i4").tobytes())


def test_letters_are_upright_and_numbered_from_0(tmp_path: Path) -> None:
    """A is 1 and Z 26 in the files. Row 3, column 9 of the file is row 9, column 3 of the upright image."""
    write_emnist(tmp_path, "letters", LABELS)
    data = EMNIST("letters", root=str(tmp_path), num_clients=2)
    images, labels = data.load(train=True)
    assert images.dtype == torch.uint8
    assert images.is_contiguous()
    assert labels.tolist() == [0, 25, 2, 2]
    assert images.nonzero().tolist() == [[n, 0, 9, 3] for n in range(4)]
    assert data.load(train=False)[1].tolist() == [1, 0]
    assert data.class_counts().sum(0).nonzero().flatten().tolist() == [0, 2, 25]


def test_other_splits_keep_their_numbers(tmp_path: Path) -> None:
    write_emnist(tmp_path, "balanced", {"train": [0, 46], "test": [11]})
    data = EMNIST(root=str(tmp_path))
    assert data.load(train=True)[1].tolist() == [0, 46]
    assert data.num_classes == 47


def test_torchvision_has_as_many_classes() -> None:
    """But for the letters' "N/A"."""
    for split, classes in EMNIST.source.classes_split_dict.items():
        assert EMNIST(split).num_classes == len(classes) - (split == "letters")


def test_says_what_is_missing_and_refuses_other_splits(tmp_path: Path) -> None:
    write_emnist(tmp_path, "letters", LABELS)
    with pytest.raises(
        ConfigurationError, match=f"expected EMNIST in {tmp_path / 'EMNIST' / 'raw'}, got damaged or in"
    ):
        EMNIST("balanced", root=str(tmp_path)).load(train=True)
    split: Any = "letterz"
    with pytest.raises(ConfigurationError, match=r"split must be 'balanced', .* or 'mnist', got 'letterz'"):
        EMNIST(split)


def test_qmnist_knows_the_writers(tmp_path: Path) -> None:
    write_qmnist(tmp_path)
    data = QMNIST(root=str(tmp_path))
    images, labels = data.load(train=True)
    assert images.shape == (6, 1, 28, 28)
    assert images[1, 0, 0, :3].tolist() == [784 % 256, 785 % 256, 786 % 256]
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.load(train=False)[1].tolist() == [0, 1]
    writers = data.groups()
    assert writers is not None
    assert writers.tolist() == WRITERS


def test_every_client_is_a_writer(tmp_path: Path) -> None:
    """Images 0, 2 and 4 are one writer's, 1 and 5 another's, 3 the third's; who is which client is drawn."""
    write_qmnist(tmp_path)
    data = QMNIST(root=str(tmp_path), num_clients=3, partition=Natural())
    parts = sorted(data.client_dataset(k)[:][1].tolist() for k in range(3))
    assert parts == [[0, 2, 4], [1, 5], [3]]
    assert data.class_counts().sum(1).sort().values.tolist() == [1, 2, 3]


def test_more_clients_than_writers_are_refused(tmp_path: Path) -> None:
    write_qmnist(tmp_path)
    with pytest.raises(ConfigurationError, match="got 3 groups for num_clients=4"):
        QMNIST(root=str(tmp_path), num_clients=4, partition=Natural()).setup("fit")


def test_mnist_has_no_writers() -> None:
    assert MNIST().groups() is None
