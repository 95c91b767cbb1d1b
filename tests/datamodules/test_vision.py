"""The data sets that ship, read from small files of the same format made here."""

import os
import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.image_files import write_cifar, write_folder, write_idx, write_qmnist, write_tiny
from PIL import Image

from fl_lightning.datamodules import (
    CIFAR10,
    CIFAR100,
    EMNIST,
    MNIST,
    QMNIST,
    Digits,
    FashionMNIST,
    Natural,
    PublishedImages,
    TinyImageNet,
    VisionData,
)
from fl_lightning.errors import ConfigurationError

REAL = Path(__file__).parents[2].parent / "shared" / "data"
WRITERS = [2100, 7, 2100, 326, 2100, 7]

# Small folders are not what was published, and say so: see test_fewer_images_than_published_are_a_warning.
pytestmark = pytest.mark.filterwarnings("ignore:.*may be half unpacked")


@pytest.mark.parametrize("data_class", [MNIST, FashionMNIST])
def test_reads_idx_files(tmp_path: Path, data_class: type[VisionData]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (15, 28, 28), dtype=np.uint8)
    digits = (np.arange(15) % 10).astype(np.uint8)
    images = {"train": pixels[:12], "t10k": pixels[12:]}
    write_idx(tmp_path / data_class.__name__ / "raw", images, {"train": digits[:12], "t10k": digits[12:]})
    data = data_class(root=str(tmp_path), num_clients=2)
    data.prepare_data()
    for train, rows in ((True, slice(12)), (False, slice(12, 15))):
        read, labels = data.load(train)
        assert read.dtype == torch.uint8
        assert np.array_equal(read.numpy(), pixels[rows, None])
        assert labels.tolist() == digits[rows].tolist()
    assert data.sizes.tolist() == [6, 6]
    assert data.groups() is None


@pytest.mark.parametrize("data_class", [CIFAR10, CIFAR100])
def test_reads_cifar_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_class: type[VisionData]) -> None:
    """Rows of 3072 bytes: the red 32x32 plane, row by row, then green and blue. MD5 sums are put aside."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    pixels = write_cifar(tmp_path / data_class.folder, data_class.source)
    images, found = data_class(root=str(tmp_path)).load(train=True)
    assert images.dtype == torch.uint8
    assert images.is_contiguous()
    assert np.array_equal(images.numpy(), pixels[:-1].reshape(-1, 3, 32, 32))
    assert found.tolist() == [label for number in range(len(pixels) - 1) for label in (number, 9)]
    images, found = data_class(root=str(tmp_path)).load(train=False)
    assert np.array_equal(images.numpy(), pixels[-1].reshape(2, 3, 32, 32))
    assert found.tolist() == [len(pixels) - 1, 9]


def write_emnist(root: Path, split: str, **labels: list[int]) -> None:
    """Blank images but for one pixel in row 3, column 9 of the file."""
    pixels = np.zeros((4, 28, 28), dtype=np.uint8)
    pixels[:, 3, 9] = 77
    images = {f"emnist-{split}-{part}": pixels[: len(found)] for part, found in labels.items()}
    numbers = {f"emnist-{split}-{part}": np.array(found, dtype=np.uint8) for part, found in labels.items()}
    write_idx(root / "EMNIST" / "raw", images, numbers)


def test_emnist_is_upright_and_its_letters_are_numbered_from_0(tmp_path: Path) -> None:
    """A is 1 and Z 26 in the files. Row 3, column 9 of the file is row 9, column 3 of the upright image."""
    write_emnist(tmp_path, "letters", train=[1, 26, 3, 3], test=[2, 1])
    write_emnist(tmp_path, "balanced", train=[0, 46], test=[11])
    data = EMNIST("letters", root=str(tmp_path), num_clients=2)
    images, labels = data.load(train=True)
    assert images.is_contiguous()
    assert labels.tolist() == [0, 25, 2, 2]
    assert images.nonzero().tolist() == [[n, 0, 9, 3] for n in range(4)]
    assert data.load(train=False)[1].tolist() == [1, 0]
    assert EMNIST(root=str(tmp_path)).load(train=True)[1].tolist() == [0, 46]


def test_splits_of_emnist_are_torchvisions() -> None:
    """With the same numbers of classes, but for the letters' "N/A"."""
    for split, classes in EMNIST.source.classes_split_dict.items():
        assert EMNIST(split).num_classes == len(classes) - (split == "letters")
    other: Any = "letterz"
    with pytest.raises(ConfigurationError, match=r"split must be 'balanced', .* or 'mnist', got 'letterz'"):
        EMNIST(other)


def test_clients_of_qmnist_are_writers(tmp_path: Path) -> None:
    """Images 0, 2 and 4 are one writer's, 1 and 5 another's, 3 the third's; who is which client is drawn."""
    write_qmnist(tmp_path, {"train": WRITERS, "test": [2599, 0]})
    data = QMNIST(root=str(tmp_path), num_clients=3, partition=Natural())
    images, labels = data.load(train=True)
    assert images[1, 0, 0, :3].tolist() == [784 % 256, 785 % 256, 786 % 256]
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.load(train=False)[1].tolist() == [0, 1]
    assert (data.groups() == torch.tensor(WRITERS)).all()
    assert sorted(data.client_dataset(k)[:][1].tolist() for k in range(3)) == [[0, 2, 4], [1, 5], [3]]
    with pytest.raises(ConfigurationError, match="got 3 groups for num_clients=4"):
        QMNIST(root=str(tmp_path), num_clients=4, partition=Natural()).setup("fit")


@pytest.mark.parametrize("place", [".", "CIFAR10", "cifar-10"])
def test_reads_an_image_folder(tmp_path: Path, place: str) -> None:
    """Classes and files in sorted order: red is 0, 100, 1, 101, ...; a blue pixel stays in its row and column."""
    write_folder(tmp_path / place, 10)
    pixels = np.zeros((32, 32, 3), dtype=np.uint8)
    pixels[3, 9, 2] = 77
    Image.fromarray(pixels).save(tmp_path / place / "train" / "class000" / "0.png")
    data = CIFAR10(root=str(tmp_path))  # nothing to download: the folder is there
    data.prepare_data()
    images, labels = data.load(train=True)
    assert images.dtype == torch.uint8
    assert images.shape == (20, 3, 32, 32)
    assert images.is_contiguous()
    assert images[:, 0, 5, 7].tolist() == [label + 100 * image for label in range(10) for image in range(2)]
    assert images[:, 1:].nonzero().tolist() == [[0, 1, 3, 9]]
    assert labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert data.load(train=False)[1].tolist() == list(range(10))


def test_reads_a_grey_image_folder(tmp_path: Path) -> None:
    """Colours become grey: (100, 100, 100) is 100. Names with an upper-case suffix count, others do not."""
    write_folder(tmp_path, 10, (28, 28), "L")
    first = tmp_path / "train" / "class000"
    Image.new("RGB", (28, 28), (100, 100, 100)).save(first / "2.PNG")
    (first / "notes.txt").write_text("not an image")
    images, labels = MNIST(root=str(tmp_path)).load(train=True)
    assert images.shape == (21, 1, 28, 28)
    assert images[:4, 0, 3, 4].tolist() == [0, 100, 100, 1]
    assert labels[:4].tolist() == [0, 0, 0, 1]
    Image.fromarray(np.full((28, 28), 40_000, dtype=np.uint16)).save(first / "0.png")  # 16 bits would be clipped
    with pytest.raises(
        ConfigurationError, match=rf"expected 8 bits per channel, got more in {first / '0.png'} \(I;16\)"
    ):
        MNIST(root=str(tmp_path)).load(train=True)


def link_to_nowhere(image: Path) -> None:
    image.unlink()
    image.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda image: Image.new("RGB", (40, 32)).save(image), "expected images of 32x32 pixels, got 40x32 in {image}"),
        (lambda image: image.write_bytes(image.read_bytes()[:50]), "or webp\\), got unreadable {image} .*: replace or"),
        (link_to_nowhere, "expected images .*, got unreadable {image} .*No such file"),
        (lambda image: shutil.rmtree(image.parent), "expected 10 class folders in .*train, got 9"),
        (
            lambda image: [each.unlink() for each in image.parent.iterdir()],
            "expected images .* in {image.parent}, got none",
        ),
        # Numbered in sorted order, class002 would be label 2 in training and class010 label 9 in the test set.
        (lambda image: image.parent.rename(image.parent.with_name("class010")), "same class folders in train and test"),
    ],
)
def test_refuses_damaged_image_folders(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    write_folder(tmp_path, 10)
    image = tmp_path / "train" / "class003" / "1.png"
    damage(image)
    with pytest.raises(ConfigurationError, match=message.format(image=image)):
        CIFAR10(root=str(tmp_path)).load(train=True)


@pytest.mark.parametrize("data_class", [MNIST, FashionMNIST, EMNIST, QMNIST, CIFAR10, CIFAR100, TinyImageNet])
def test_says_what_is_missing(tmp_path: Path, data_class: type[PublishedImages]) -> None:
    data = data_class(root=str(tmp_path / "nowhere"), download=False)
    with pytest.raises(ConfigurationError) as caught:
        data.setup("fit")
    message = str(caught.value)
    with pytest.raises(ConfigurationError, match="^" + re.escape(message) + "$"):
        data.prepare_data()
    assert data.missing() == message
    place = str(tmp_path / "nowhere" / data.folder)
    wanted = [f"expected {data_class.__name__} in {place}", "--data.download true", "{train,test}/<class>/*"]
    assert all(part in message for part in [*wanted, *data.files()])
    assert "\n" not in message
    assert caught.value.__suppress_context__
    assert not (tmp_path / "nowhere").exists()


def write_mnist(root: Path) -> Path:
    """Three images to train on, three to test on."""
    pixels, digits = np.zeros((3, 28, 28), dtype=np.uint8), np.zeros(3, dtype=np.uint8)
    write_idx(root / "MNIST" / "raw", {"train": pixels, "t10k": pixels}, {"train": digits, "t10k": digits})
    return root / "MNIST" / "raw"


@pytest.mark.parametrize("keep", [0, 3, 10])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
def test_damaged_files_say_what_to_delete(tmp_path: Path, name: str, keep: int) -> None:
    """Also if a download is asked for: nothing of the user's is deleted."""
    folder = write_mnist(tmp_path)
    (folder / name).write_bytes((folder / name).read_bytes()[:keep])
    message = f"got damaged or incomplete files: delete {folder} and fetch them again .--data.download true"
    data = MNIST(root=str(tmp_path))
    data.prepare_data()
    with pytest.raises(ConfigurationError, match=message):
        data.setup("fit")
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize(
    ("data_class", "write", "file"),
    [
        (MNIST, write_mnist, "train-labels-idx1-ubyte"),
        (EMNIST, lambda root: write_emnist(root, "letters", train=[1], test=[1]), None),  # of another split
        (CIFAR10, lambda root: write_cifar(root / CIFAR10.folder, CIFAR10.source), "data_batch_1"),
        (TinyImageNet, lambda root: write_tiny(root / TinyImageNet.folder), "val/val_annotations.txt"),
    ],
)
def test_incomplete_files_say_what_to_delete(
    tmp_path: Path, data_class: type[PublishedImages], write: Callable[[Path], object], file: str | None
) -> None:
    write(tmp_path)
    if file:
        (tmp_path / data_class.folder / file).unlink()
    with pytest.raises(ConfigurationError, match=f"files: delete {tmp_path / data_class.folder} and fetch them again"):
        data_class(root=str(tmp_path)).load(train=data_class is not TinyImageNet)


def test_fewer_images_than_published_are_a_warning(tmp_path: Path) -> None:
    write_folder(tmp_path, 10)
    data = CIFAR10(root=str(tmp_path))
    with pytest.warns(UserWarning, match=f"CIFAR10: 20 of 50,000 training images are in {tmp_path}: the data may"):
        data.load(train=True)
    with pytest.warns(UserWarning, match="CIFAR10: 10 of 10,000 test images"):
        data.load(train=False)


def test_an_image_folder_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second data module decodes nothing: prepare_data has read the images into the cache for all.

    A file that changes is decoded again, also one of the same size and time of modification.
    """
    write_folder(tmp_path / "cifar10", 10)
    settings = {"root": str(tmp_path), "cache": str(tmp_path / "cache")}
    CIFAR10(**settings).prepare_data()  # type: ignore[arg-type]  # both are strings
    assert len(list((tmp_path / "cache").iterdir())) == 2
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", None)
        images, _ = CIFAR10(**settings).load(train=True)  # type: ignore[arg-type]
    assert images[:, 0, 5, 7].tolist() == [label + 100 * image for label in range(10) for image in range(2)]
    damaged = tmp_path / "cifar10" / "train" / "class003" / "1.png"
    before = damaged.stat()
    damaged.write_bytes(b"x" * before.st_size)
    os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ConfigurationError, match="unreadable"):
        CIFAR10(**settings).load(train=True)  # type: ignore[arg-type]


def test_prepare_data_leaves_nothing_to_do(tmp_path: Path) -> None:
    """Not even where nothing is cached: what it decoded is not decoded again."""
    write_folder(tmp_path, 10)
    (tmp_path / "cache").write_text("in the way")
    data = CIFAR10(root=str(tmp_path), cache=str(tmp_path / "cache"))
    with pytest.warns(UserWarning, match="expected to keep decoded images"):
        data.prepare_data()
    shutil.rmtree(tmp_path / "train")
    data.setup("fit")
    assert sum(data.sizes.tolist()) == 20


def test_digits() -> None:
    """1,797 images, every fifth of each class held out; grey level 16 is 255 and 8 is round(127.5) = 128."""
    images, labels = Digits().load(train=True)
    test_images, test_labels = Digits().load(train=False)
    assert images.shape == (1442, 1, 8, 8)
    assert test_images.shape == (355, 1, 8, 8)
    assert set(images.flatten().tolist()) == {round(level * 255 / 16) for level in range(17)}
    assert torch.bincount(labels).min() >= 139
    assert torch.bincount(test_labels).min() >= 34
    scaled = images.double() / 255
    assert (Digits.mean, Digits.std) == ((round(scaled.mean().item(), 4),), (round(scaled.std().item(), 4),))


@pytest.mark.skipif(not (REAL / "MNIST").is_dir(), reason="real MNIST is not there")
def test_real_mnist() -> None:
    """The well-known constants are those of the training set."""
    images, labels = MNIST(root=str(REAL)).load(train=True)
    assert images.shape == (60000, 1, 28, 28)
    assert torch.bincount(labels)[:3].tolist() == [5923, 6742, 5958]
    values = torch.arange(256) / 255
    share = torch.bincount(images.flatten()) / images.numel()
    mean = (share * values).sum()
    assert mean.item() == pytest.approx(MNIST.mean[0], abs=1e-4)
    assert (share * (values - mean) ** 2).sum().sqrt().item() == pytest.approx(MNIST.std[0], abs=1e-4)


def test_the_package_has_one_name() -> None:
    path = Path(__file__).parents[2] / "datamodules" / "__init__.py"
    with pytest.raises(ImportError, match=r"import fl_lightning\.datamodules, not datamodules"):
        runpy.run_path(str(path), run_name="datamodules")
