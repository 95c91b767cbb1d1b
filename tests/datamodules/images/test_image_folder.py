"""ImageFolder: sizes, classes, constants."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import write_folder, write_image
from PIL import Image

from fl_lightning.datamodules import CIFAR10, ImageFolder
from fl_lightning.datamodules.images.image_folder import measure
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


def test_measures_the_training_set() -> None:
    """0, 0, 0 and 255 in the first channel: mean 1/4, variance 1/4 · 9/16 + 3/4 · 1/16 = 3/16. The second is 51."""
    images = torch.tensor([[[0, 0], [51, 51]], [[0, 255], [51, 51]]], dtype=torch.uint8).view(2, 2, 1, 2)
    mean, std = measure(images)
    assert mean == pytest.approx((0.25, 0.2))
    assert std == pytest.approx((0.1875**0.5, 1.0))


def test_what_was_measured_normalises(tmp_path: Path) -> None:
    write_folder(tmp_path, 3)
    data = ImageFolder(str(tmp_path), 32, num_clients=2)
    data.setup("fit")
    images, labels = data._dealt.examples.tensors
    inputs, _ = data.on_after_batch_transfer([images, labels], 0)
    assert inputs[:, 0].mean().item() == pytest.approx(0, abs=1e-5)
    assert inputs[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert not inputs[:, 1:].any()  # a channel of one value


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
