"""ImageFolder: sizes, classes, constants."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.image_files import write_16_bits, write_folder, write_image
from PIL import Image, ImageOps
from torchvision import datasets  # type: ignore[import-untyped]  # torchvision ships no types

from fl_lightning.datamodules import CIFAR10, Colour, ImageFolder
from fl_lightning.datamodules.changes.constants import measure
from fl_lightning.errors import ConfigurationError


@pytest.mark.parametrize("test", ["test", "val"])
def test_counts_the_classes(tmp_path: Path, test: str) -> None:
    """Levels 0, 100, 1, 101, 2, 102 in red."""
    write_folder(tmp_path, 3)
    (tmp_path / "test").rename(tmp_path / test)
    (tmp_path / "train" / ".hidden").mkdir()
    data = ImageFolder(str(tmp_path), 32, num_clients=2)
    assert data.num_classes == 3
    images, labels = data.load(train=True)
    assert images[:, 0, 0, 0].tolist() == [0, 100, 1, 101, 2, 102]
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.load(train=False)[1].tolist() == [0, 1, 2]
    assert data.class_counts().sum(0).tolist() == [2, 2, 2]


def test_of_test_and_val_test_is_the_test_set(tmp_path: Path) -> None:
    write_folder(tmp_path, 3)
    (tmp_path / "val" / "class000").mkdir(parents=True)
    assert ImageFolder(str(tmp_path), 32).load(train=False)[1].tolist() == [0, 1, 2]


def test_other_sizes_are_covered_and_cut(tmp_path: Path) -> None:
    """A 40 x 20 image whose left, middle and right 10 + 20 + 10 columns are 50, 100, 200 keeps the middle at 20 x 20.

    A 4 x 4 image of one colour is scaled up to it.
    """
    write_folder(tmp_path, 2)
    pixels = np.repeat(np.array([50, 100, 200], dtype=np.uint8), [10, 20, 10])[None].repeat(20, 0)
    Image.fromarray(pixels).save(tmp_path / "train" / "class000" / "0.png")
    write_image(tmp_path / "train" / "class000" / "1.png", 33, (4, 4))
    data = ImageFolder(str(tmp_path), (20, 20), channels=1, mean=(0.5,), std=(0.25,))
    images, _ = data.load(train=True)
    assert (data.mean, data.std) == ((0.5,), (0.25,))  # those given, not those of the images
    assert images.shape == (4, 1, 20, 20)
    assert set(images[0].flatten().tolist()) == {100}
    assert set(images[1].flatten().tolist()) == {round(0.299 * 33)}  # red as grey
    assert ImageFolder(str(tmp_path), (10, 20)).load(train=True)[0].shape == (4, 3, 10, 20)


def test_reads_what_torchvision_reads(tmp_path: Path) -> None:
    """In all its formats, and in folders within a class, such as one named images; the rest is counted, hidden or not.

    Only what notebooks leave behind in hidden folders, which torchvision would read, too, is none of the data.
    """
    write_folder(tmp_path, 2, (8, 8))
    first = tmp_path / "train" / "class000"
    for number, suffix in enumerate(("bmp", "JPEG", "pgm", "PPM", "tif", "tiff", "webp")):
        (first / "images" / "more").mkdir(parents=True, exist_ok=True)
        write_image(first / ("images/more" if number % 2 else ".") / f"{number}.{suffix}", 20 * number, (8, 8), "L")
    samples = datasets.ImageFolder(tmp_path / "train").samples
    for name in ("a.gif", "b.heic", "images/c.heic", "d", "notes.txt"):
        (first / name).write_bytes(b"")
    (first / ".ipynb_checkpoints").mkdir()
    write_image(first / ".ipynb_checkpoints" / "0-checkpoint.png", 9, (8, 8))
    with pytest.warns(UserWarning, match="left out") as caught:
        images, labels = ImageFolder(str(tmp_path), 8, cache=None).load(train=True)
    assert [str(each.message).partition(", got ")[2] for each in caught] == [
        "others, too: left out 2 .heic, 1 .gif, 1 without suffix"
    ]
    expected = [(label, np.asarray(Image.open(path).convert("RGB"))) for path, label in sorted(samples)]
    assert labels.tolist() == [label for label, _ in expected] == [0] * 9 + [1] * 2
    assert all(
        np.array_equal(image.permute(1, 2, 0), pixels) for image, (_, pixels) in zip(images, expected, strict=True)
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright(tmp_path: Path, orientation: int) -> None:
    """As PIL turns them, also where only the turned image has the size that is asked for."""
    write_folder(tmp_path, 2, (6, 4))
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    path = tmp_path / "train" / "class000" / "0.png"
    Image.fromarray(pixels).save(path, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(path)))
    images, _ = ImageFolder(str(tmp_path), upright.shape, 1, cache=None).load(train=True)  # type: ignore[arg-type]
    assert images[0, 0].tolist() == upright.tolist()
    assert (upright.tolist() == pixels.tolist()) == (orientation == 1)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_refuses_more_bits_than_it_keeps(tmp_path: Path, channels: int) -> None:
    """White of a camera of 12 bits, 4095, would become 4095 // 256 = 15 of 255: that is what PIL reads."""
    write_folder(tmp_path, 2, (4, 4))
    path = write_16_bits(tmp_path / "train" / "class000" / "0.png", 4095, channels)
    if channels > 1:
        assert set(np.asarray(Image.open(path)).flatten().tolist()) == {15}
    with pytest.raises(ConfigurationError, match=f"expected 8 bits per channel, got more in {path}"):
        ImageFolder(str(tmp_path), 4, cache=None).load(train=True)


@pytest.mark.parametrize(("largest", "refused"), [(255, False), (100, False), (4095, True)])
def test_a_ppm_says_its_largest_value(tmp_path: Path, largest: int, refused: bool) -> None:
    """PIL scales by it, and would keep 8 of 12 bits."""
    write_folder(tmp_path, 2, (4, 4))
    for split in ("train", "test"):
        pixels = bytes(4 * 4 * 3 * (2 if refused else 1))
        (tmp_path / split / "class000" / "0.ppm").write_bytes(b"P6 4 4 %d\n" % largest + pixels)
    data = ImageFolder(str(tmp_path), 4, cache=None)
    with pytest.raises(ConfigurationError, match="8 bits per channel, got more") if refused else nullcontext():
        data.load(train=True)


def test_an_image_of_too_many_pixels_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIL refuses an image of more than twice its limit: 256 pixels for a limit of 100."""
    write_folder(tmp_path, 2, (16, 16))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ConfigurationError, match=r"0.png \(Image size \(256 pixels\) exceeds limit of 200.*shrink it$"):
        ImageFolder(str(tmp_path), 4, cache=None).load(train=True)


def test_measures_the_training_set() -> None:
    """0, 0, 0 and 255 in the first channel: mean 1/4, variance 1/4 · 9/16 + 3/4 · 1/16 = 3/16. The second is 51."""
    images = torch.tensor([[[0, 0], [51, 51]], [[0, 255], [51, 51]]], dtype=torch.uint8).view(2, 2, 1, 2)
    mean, std = measure(images, torch.arange(2))
    assert mean == pytest.approx((0.25, 0.2))
    assert std == pytest.approx((0.1875**0.5, 1.0))


@pytest.mark.parametrize(
    "settings",
    [
        {"train_examples": 10, "validation_examples": 2},
        {"train_examples": 10, "validation_examples": 1},
        {"long_tail": 4.0, "validation_examples": 3},
        {"validation_examples": 20},
        {"held_out": 0.5},
        {"train_examples": 20, "held_out": 0.5},
        {"proxy_per_class": 5, "proxy_source": "train"},
        {"resize": 8},
        {"domain_shift": Colour(((1, 0.5, 0.2), (0.3, 1, 1)))},
    ],
)
def test_constants_are_measured_on_what_trains(tmp_path: Path, settings: dict[str, Any]) -> None:
    """On none of what validates, of what clients hold out, of the proxy set; and as the clients see the images.

    NumPy's mean and standard deviation over the images of the clients.
    """
    levels = np.random.default_rng(0).integers(0, 256, (2, 2, 20, 4, 4, 3), dtype=np.uint8)
    for split, by_class in zip(("train", "test"), levels, strict=True):
        for name, images in zip(("cat", "dog"), by_class, strict=True):
            (tmp_path / split / name).mkdir(parents=True)
            for number, pixels in enumerate(images):
                Image.fromarray(pixels // (number + 1)).save(tmp_path / split / name / f"{number}.png")
    data = ImageFolder(str(tmp_path), 4, num_clients=2, cache=None, **settings)
    data.setup("fit")
    trained = np.concatenate([data.client_dataset(client)[:][0].numpy() for client in range(2)]) / 255
    assert data.mean == pytest.approx(trained.mean((0, 2, 3)).tolist())
    assert data.std == pytest.approx(trained.std((0, 2, 3)).tolist())


def test_what_is_decoded_is_not_taken_for_another_split(tmp_path: Path) -> None:
    """Files of one name, size and time in train, test and val: also where val takes the place of test."""
    for level, split in enumerate(("train", "test", "val")):
        (tmp_path / split / "cat").mkdir(parents=True)
        file = tmp_path / split / "cat" / "0.bmp"
        write_image(file, 50 + level, (4, 4))
        os.utime(file, ns=(0, 0))

    def levels() -> list[int]:
        data = ImageFolder(str(tmp_path), 4, cache=str(tmp_path / "cache"))
        return [int(data.load(train)[0][0, 0, 0, 0]) for train in (True, False)]

    assert levels() == levels() == [50, 51]
    (tmp_path / "test").rename(tmp_path / "old")
    (tmp_path / "val").rename(tmp_path / "test")
    assert levels() == [50, 52]


def test_what_was_measured_normalises(tmp_path: Path) -> None:
    write_folder(tmp_path, 3)
    data = ImageFolder(str(tmp_path), 32, num_clients=2)
    data.setup("fit")
    images, labels = data._dealt.examples.tensors
    inputs, _ = data.on_after_batch_transfer([images, labels], 0)
    assert inputs[:, 0].mean().item() == pytest.approx(0, abs=1e-5)
    assert inputs[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert not inputs[:, 1:].any()  # a channel of one value
    assert [*data.measured] == ["mean and std"]
    given: list[Any] = [{"normalize": False}, {"normalize": (0.5, 0.5)}, {"mean": (0.5,) * 3, "std": (0.5,) * 3}]
    assert not any(ImageFolder(str(tmp_path), **settings).measured for settings in given)


def test_resized_images_are_not_taken_for_exact_ones(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", 10, (40, 40))
    places = {"root": str(tmp_path / "data"), "cache": str(tmp_path / "cache")}
    for size in (32, 16, 32):
        ImageFolder(image_size=size, **places).prepare_data()  # type: ignore[arg-type]  # both are strings
    assert len(list((tmp_path / "cache").iterdir())) == 4
    with pytest.raises(ConfigurationError, match="expected images of 32x32 pixels, got 40x40"):
        CIFAR10(**places).prepare_data()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_size": 0}, "expected image_size to be pixels >= 1, or height and width, got 0"),
        ({"image_size": (8, 8, 3)}, "expected image_size"),
        ({"channels": 2}, "channels must be 1 or 3, got 2"),
        ({"mean": (0.5, 0.5, 0.5)}, "expected mean and std > 0 of each of 3 channels, or neither"),
        ({"mean": (0.5,), "std": (0.5,)}, "of each of 3 channels"),
        ({"mean": (0.5,) * 3, "std": (0.5, 0.5, 0.0)}, "std > 0"),
        ({"mean": (0.5,) * 3, "std": (0.5, 0.5, float("nan"))}, "std > 0"),
        ({"mean": (0.5, 0.5, float("nan")), "std": (0.5,) * 3}, "expected mean"),
    ],
)
def test_refuses_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ImageFolder(**{"root": "data", "image_size": 8, **arguments})


def test_says_what_is_missing(tmp_path: Path) -> None:
    data = ImageFolder(str(tmp_path), 8)
    with pytest.raises(ConfigurationError, match=r"or \{train,val\}/<class>/\* in .*, got none: point root to such"):
        data.prepare_data()
    assert "got none" in (data.missing() or "")
    write_folder(tmp_path, 3)
    assert data.missing() is None
    (tmp_path / "test" / "class002").rename(tmp_path / "test" / "class2")
    with pytest.raises(ConfigurationError, match=r"expected the same class folders in train and test of .*'class002'"):
        data.prepare_data()
