"""The data sets that ship, read from small files of the same format made here."""

import os
import pickle
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import write_folder, write_idx
from PIL import Image

from fl_lightning.datamodules import CIFAR10, CIFAR100, MNIST, Digits, FashionMNIST, VisionData
from fl_lightning.errors import ConfigurationError

REAL = Path(__file__).parents[2].parent / "shared" / "data"


# Small folders are not what was published, and say so: see test_fewer_images_than_published_are_a_warning.
pytestmark = pytest.mark.filterwarnings("ignore:.*may be half unpacked")


@pytest.mark.parametrize("data_class", [MNIST, FashionMNIST])
def test_reads_idx_files(tmp_path: Path, data_class: type[VisionData]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (15, 28, 28), dtype=np.uint8)
    digits = (np.arange(15) % 10).astype(np.uint8)
    write_idx(
        tmp_path / data_class.__name__ / "raw",
        {"train": pixels[:12], "t10k": pixels[12:]},
        {"train": digits[:12], "t10k": digits[12:]},
    )
    data = data_class(root=str(tmp_path), num_clients=2)
    data.prepare_data()
    for train, rows in ((True, slice(12)), (False, slice(12, 15))):
        images, labels = data.load(train)
        assert images.dtype == torch.uint8
        assert images.shape[1:] == (1, 28, 28)
        assert np.array_equal(images[:, 0].numpy(), pixels[rows])
        assert labels.tolist() == digits[rows].tolist()
    assert sum(data.client_num_samples(k) for k in range(2)) == 12


@pytest.mark.parametrize(
    ("data_class", "train", "test", "meta", "labels", "names"),
    [
        (CIFAR10, [f"data_batch_{i}" for i in range(1, 6)], "test_batch", "batches.meta", "labels", "label_names"),
        (CIFAR100, ["train"], "test", "meta", "fine_labels", "fine_label_names"),
    ],
)
def test_reads_cifar_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    data_class: type[VisionData],
    train: list[str],
    test: str,
    meta: str,
    labels: str,
    names: str,
) -> None:
    """Rows of 3072 bytes: the red 32x32 plane, row by row, then green and blue. MD5 sums are put aside."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    pixels = np.random.default_rng(0).integers(0, 256, (len(train) + 1, 2, 3072), dtype=np.uint8)
    folder = tmp_path / data_class.folder
    folder.mkdir()
    (folder / meta).write_bytes(pickle.dumps({names: ["a", "b"]}))
    for number, (name, rows) in enumerate(zip([*train, test], pixels, strict=True)):
        (folder / name).write_bytes(pickle.dumps({"data": rows, labels: [number, 9]}))
    images, found = data_class(root=str(tmp_path)).load(train=True)
    assert images.dtype == torch.uint8
    assert images.is_contiguous()
    assert np.array_equal(images.numpy(), pixels[:-1].reshape(-1, 3, 32, 32))
    assert found.tolist() == [label for number in range(len(train)) for label in (number, 9)]
    images, found = data_class(root=str(tmp_path)).load(train=False)
    assert np.array_equal(images.numpy(), pixels[-1].reshape(2, 3, 32, 32))
    assert found.tolist() == [len(train), 9]


@pytest.mark.parametrize("place", [".", "CIFAR10", "cifar10", "cifar-10"])
def test_reads_an_image_folder(tmp_path: Path, place: str) -> None:
    """Classes and files in sorted order: red is 0, 100, 1, 101, ... and the other channels are 0."""
    write_folder(tmp_path / place, 10)
    data = CIFAR10(root=str(tmp_path))  # nothing to download: the folder is there
    data.prepare_data()
    images, labels = data.load(train=True)
    assert images.dtype == torch.uint8
    assert images.shape == (20, 3, 32, 32)
    assert images.is_contiguous()
    assert images[:, 0, 5, 7].tolist() == [label + 100 * image for label in range(10) for image in range(2)]
    assert int(images[:, 1:].max()) == 0
    assert labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert data.load(train=False)[1].tolist() == list(range(10))


def test_reads_an_image_folder_of_100_classes(tmp_path: Path) -> None:
    write_folder(tmp_path / "cifar100", 100)
    data = CIFAR100(root=str(tmp_path), num_clients=10)
    assert sum(data.client_num_samples(k) for k in range(10)) == 200
    assert len(data.val_dataloader().dataset) == 100  # type: ignore[arg-type]  # it has a length


def test_reads_a_grey_image_folder(tmp_path: Path) -> None:
    """Colours become grey: (100, 100, 100) is 100. Names with an upper-case suffix count, others do not."""
    write_folder(tmp_path, 10, (28, 28), "L")
    Image.new("RGB", (28, 28), (100, 100, 100)).save(tmp_path / "train" / "class000" / "2.PNG")
    (tmp_path / "train" / "class000" / "notes.txt").write_text("not an image")
    images, labels = MNIST(root=str(tmp_path)).load(train=True)
    assert images.shape == (21, 1, 28, 28)
    assert images[:4, 0, 3, 4].tolist() == [0, 100, 100, 1]
    assert labels[:4].tolist() == [0, 0, 0, 1]


def test_rows_and_columns_are_not_swapped(tmp_path: Path) -> None:
    write_folder(tmp_path, 10)
    pixels = np.zeros((32, 32, 3), dtype=np.uint8)
    pixels[3, 9, 2] = 77
    Image.fromarray(pixels).save(tmp_path / "train" / "class000" / "0.png")
    images, _ = CIFAR10(root=str(tmp_path)).load(train=True)
    assert images[0].nonzero().tolist() == [[2, 3, 9]]
    assert int(images[0, 2, 3, 9]) == 77


def test_refuses_wrong_image_sizes(tmp_path: Path) -> None:
    write_folder(tmp_path, 10)
    wrong = tmp_path / "train" / "class003" / "1.png"
    Image.new("RGB", (40, 32)).save(wrong)
    with pytest.raises(ConfigurationError, match=f"expected images of 32x32 pixels, got 40x32 in {wrong}"):
        CIFAR10(root=str(tmp_path)).setup("fit")


def test_refuses_damaged_images_and_folders(tmp_path: Path) -> None:
    write_folder(tmp_path, 10)
    data = CIFAR10(root=str(tmp_path))
    broken = tmp_path / "train" / "class003" / "1.png"
    broken.write_bytes(broken.read_bytes()[:50])
    with pytest.raises(ConfigurationError, match=f"expected a png or jpg image, got unreadable {broken}"):
        data.load(train=True)
    broken.unlink()
    broken.symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match=f"expected a png or jpg image, got unreadable {broken}"):
        data.load(train=True)
    shutil.rmtree(tmp_path / "train" / "class003")
    with pytest.raises(ConfigurationError, match=f"expected 10 class folders in {tmp_path / 'train'}, got 9"):
        data.load(train=True)
    (tmp_path / "train" / "class003").mkdir()
    with pytest.raises(ConfigurationError, match=r"expected png or jpg images in .*class003, got none"):
        data.load(train=True)


def test_refuses_folders_that_name_their_classes_differently(tmp_path: Path) -> None:
    """Numbered in sorted order, class002 would be label 2 in training and class010 label 9 in the test set."""
    write_folder(tmp_path, 10)
    (tmp_path / "test" / "class000").rename(tmp_path / "test" / "class010")
    with pytest.raises(ConfigurationError, match="expected the same class folders in train and test"):
        CIFAR10(root=str(tmp_path)).load(train=True)


@pytest.mark.parametrize("data_class", [MNIST, FashionMNIST, CIFAR10, CIFAR100])
def test_says_what_is_missing(tmp_path: Path, data_class: type[VisionData]) -> None:
    data = data_class(root=str(tmp_path / "nowhere"), download=False)
    with pytest.raises(ConfigurationError) as caught:
        data.setup("fit")
    message = str(caught.value)
    with pytest.raises(ConfigurationError, match="^" + re.escape(message) + "$"):
        data.prepare_data()
    assert data.missing() == message
    wanted = [
        "expected " + data_class.__name__,
        str(tmp_path / "nowhere"),
        data.folder,
        "--data.download true",
        *data.files(),
    ]
    assert all(part in message for part in [*wanted, "{train,test}/<class>/*"])
    assert "\n" not in message
    assert caught.value.__suppress_context__
    assert not (tmp_path / "nowhere").exists()


def write_mnist(root: Path) -> Path:
    """Three images to train on, three to test on."""
    pixels, digits = np.zeros((3, 28, 28), dtype=np.uint8), np.zeros(3, dtype=np.uint8)
    write_idx(root / "MNIST" / "raw", {"train": pixels, "t10k": pixels}, {"train": digits, "t10k": digits})
    return root / "MNIST" / "raw"


@pytest.mark.parametrize("keep", [0, 3, 100])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
def test_damaged_idx_files_say_what_to_delete(tmp_path: Path, name: str, keep: int) -> None:
    """Also if a download is asked for: nothing of the user's is deleted."""
    folder = write_mnist(tmp_path)
    (folder / name).write_bytes((folder / name).read_bytes()[: min(keep, 10)])
    message = f"got damaged or incomplete files: delete {folder} and fetch them again .--data.download true"
    data = MNIST(root=str(tmp_path))
    data.prepare_data()
    with pytest.raises(ConfigurationError, match=message):
        data.setup("fit")
    assert len(list(folder.iterdir())) == 4


def test_half_of_torchvisions_files_say_what_to_delete(tmp_path: Path) -> None:
    (write_mnist(tmp_path) / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(ConfigurationError, match=f"delete {tmp_path / 'MNIST' / 'raw'} and fetch"):
        MNIST(root=str(tmp_path)).load(train=True)


def test_damaged_cifar_files_say_what_to_delete(tmp_path: Path) -> None:
    folder = tmp_path / CIFAR10.folder
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"half")
    with pytest.raises(ConfigurationError, match=f"delete {folder} and fetch them again"):
        CIFAR10(root=str(tmp_path)).load(train=True)


def test_fewer_images_than_published_are_a_warning(tmp_path: Path) -> None:
    write_folder(tmp_path, 10)
    data = CIFAR10(root=str(tmp_path))
    with pytest.warns(UserWarning, match=f"CIFAR10: 20 of 50,000 training images are in {tmp_path}: the data may"):
        data.load(train=True)
    with pytest.warns(UserWarning, match="CIFAR10: 10 of 10,000 test images"):
        data.load(train=False)


def test_an_image_folder_is_decoded_once(tmp_path: Path) -> None:
    """The second data module would see the damage: prepare_data has read the images into the cache for all."""
    write_folder(tmp_path / "cifar10", 10)
    CIFAR10(root=str(tmp_path), cache=str(tmp_path / "cache")).prepare_data()
    assert len(list((tmp_path / "cache").iterdir())) == 2
    damaged = tmp_path / "cifar10" / "train" / "class003" / "1.png"
    before = damaged.stat()
    damaged.write_bytes(b"x" * before.st_size)
    os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))
    images, labels = CIFAR10(root=str(tmp_path), cache=str(tmp_path / "cache")).load(train=True)
    assert images[:, 0, 5, 7].tolist() == [label + 100 * image for label in range(10) for image in range(2)]
    assert labels.tolist() == [label for label in range(10) for _ in range(2)]
    with pytest.raises(ConfigurationError, match="unreadable"):
        CIFAR10(root=str(tmp_path), cache=None).load(train=True)


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


def test_refuses_deep_images(tmp_path: Path) -> None:
    """16 bits would be clipped to 255."""
    write_folder(tmp_path, 10, (28, 28), "L")
    deep = tmp_path / "train" / "class000" / "0.png"
    Image.fromarray(np.full((28, 28), 40_000, dtype=np.uint16)).save(deep)
    with pytest.raises(ConfigurationError, match=f"expected 8 bits per channel, got mode I;16 in {deep}"):
        MNIST(root=str(tmp_path)).load(train=True)


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
    assert Digits.mean == (round(scaled.mean().item(), 4),)
    assert Digits.std == (round(scaled.std().item(), 4),)


@pytest.mark.skipif(not (REAL / "MNIST").is_dir(), reason="real MNIST is not there")
def test_real_mnist() -> None:
    """The well-known constants are those of the training set."""
    data = MNIST(root=str(REAL), num_clients=100, proxy_per_class=20)
    images, labels = data._dealt.examples.tensors
    assert images.shape == (60000, 1, 28, 28)
    assert torch.bincount(labels)[:3].tolist() == [5923, 6742, 5958]
    assert len(data._dealt.evaluation) == 9800
    values = torch.arange(256) / 255
    share = torch.bincount(images.flatten()) / images.numel()
    mean = (share * values).sum()
    assert mean.item() == pytest.approx(MNIST.mean[0], abs=1e-4)
    assert (share * (values - mean) ** 2).sum().sqrt().item() == pytest.approx(MNIST.std[0], abs=1e-4)


def test_the_package_has_one_name() -> None:
    path = Path(__file__).parents[2] / "datamodules" / "__init__.py"
    with pytest.raises(ImportError, match=r"import fl_lightning\.datamodules, not datamodules"):
        runpy.run_path(str(path), run_name="datamodules")
