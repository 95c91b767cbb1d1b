"""BoxFolder: what it reads back, where boxes come to lie, what it refuses, and a federated round on it."""

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import jsonargparse
import pytest
import torch
from lib.image_files import write_16_bits
from lib.toy import trainer
from PIL import Image

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.datamodules import BoxFolder, LabelSwap
from fl_lightning.models import Detector, YOLOv8


def write(root: Path, split: str, name: str, lines: str | None, size: tuple[int, int] = (64, 64)) -> Path:
    """A red image, and its boxes if any; the image's path."""
    image, text = root / "images" / split / name, (root / "labels" / split / name).with_suffix(".txt")
    for path in (image, text):
        path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (255, 0, 0)).save(image)
    if lines is not None:
        text.write_text(lines)
    return image


def read(root: Path, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return BoxFolder(str(root), **{"image_size": 64, **settings}).load(train=True)


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    """Sorted by name; 64 pixels times centre ± half the size: 16 ± 8, 32 ± 16; 48 ± 16 stops at 64 and 8 ± 16 at 0."""
    write(tmp_path, "train", "b.png", None)
    write(tmp_path, "train", "a.PNG", "1 0.25 0.5 0.25 0.5\n\n0 0.75 0.125 0.5 0.5\n")
    write(tmp_path, "train", "c.png", "")
    images, targets = read(tmp_path, num_classes=2)
    assert images.dtype == torch.uint8
    assert images.shape == (3, 3, 64, 64)
    assert images[:, 0].eq(255).all()
    assert images[:, 1:].eq(0).all()
    none = [-1.0, 0, 0, 0, 0]
    expected = [[[1, 8, 16, 24, 48], [0, 32, 0, 64, 24]], [none, none], [none, none]]
    torch.testing.assert_close(targets, torch.tensor(expected))
    for path in (tmp_path / "labels" / "train").iterdir():
        path.unlink()
    assert read(tmp_path)[1].tolist() == [[none]] * 3  # nobody has a box: there is one row at least


@pytest.mark.parametrize(("size", "place"), [((100, 50), (0, 16, 64, 48)), ((25, 50), (16, 0, 48, 64))])
def test_letterbox(tmp_path: Path, size: tuple[int, int], place: tuple[int, int, int, int]) -> None:
    """Scaled to 64x32 and 32x64; 16 pixels of grey 114 on two sides. The whole image is one box."""
    write(tmp_path, "train", "a.png", "0 0.5 0.5 1 1", size)
    images, targets = read(tmp_path)
    torch.testing.assert_close(targets[0, 0], torch.tensor([0.0, *place]))
    left, top, right, bottom = place
    inside = torch.zeros(64, 64, dtype=torch.bool)
    inside[top:bottom, left:right] = True
    assert images[0, 0][inside].eq(255).all()
    assert images[0, :, ~inside].eq(114).all()


def test_a_photograph_is_turned_upright(tmp_path: Path) -> None:
    """EXIF orientation 6: what is stored left is shown on top. Labels are about what is shown."""
    path = write(tmp_path, "train", "a.png", "0 0.5 0.25 1 0.5")
    stored = Image.new("RGB", (64, 64))
    stored.paste((255, 255, 255), (0, 0, 32, 64))
    exif = Image.Exif()
    exif[0x0112] = 6
    stored.save(path, exif=exif)
    images, targets = read(tmp_path)
    assert targets[0, 0].tolist() == [0, 0, 0, 64, 32]
    assert images[0, :, :32].eq(255).all()
    assert images[0, :, 32:].eq(0).all()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.1", r"expected five numbers, .* in line 2 of {path}, got '0 0\.5 0\.5 0\.1': correct the line"),
        ("face 0.5 0.5 0.1 0.1", "expected five numbers"),
        ("1 0.5 0.5 0.1 0.1", r"expected a class from 0 to 0 in line 2 of {path}, got 1: correct the class"),
        ("0.5 0.5 0.5 0.1 0.1", "expected a class from 0 to 0"),
        ("nan 0.5 0.5 0.1 0.1", "expected a class from 0 to 0"),
        ("0 32 0.5 0.1 0.1", r"in \[0, 1\], with a size above 0, in line 2 of {path}, got 32 0\.5 0\.1 0\.1: divide"),
        ("0 0.5 -0.5 0.1 0.1", r"in \[0, 1\]"),
        ("0 0.5 0.5 0.1 0", "with a size above 0"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    write(tmp_path, "train", "a.png", f"0 0.5 0.5 1 1\n{line}\n")
    path = re.escape(str(tmp_path / "labels" / "train" / "a.txt"))
    with pytest.raises(ConfigurationError, match=message.replace("{path}", path)) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="image_size must be at least 1, got 0"):
        BoxFolder(image_size=0)
    with pytest.raises(
        ConfigurationError, match=f"expected images .* in {tmp_path}/images/train, got none: add images"
    ):
        read(tmp_path)
    assert "expected images (bmp, jpg, " in (BoxFolder(root=str(tmp_path)).missing() or "")
    image = write(tmp_path, "train", "a.png", None)
    (tmp_path / "labels" / "train").rmdir()
    with pytest.raises(ConfigurationError, match=r"expected a folder .*labels/train, got none: point root to the data"):
        read(tmp_path)
    (tmp_path / "labels" / "train" / "a.txt").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"expected a text file of boxes, got unreadable .*a\.txt"):
        read(tmp_path)
    image.write_bytes(b"no image")
    with pytest.raises(ConfigurationError, match=f"got unreadable {image} .*: replace or shrink it"):
        read(tmp_path)


def test_images_in_folders_and_of_other_kinds(tmp_path: Path) -> None:
    """Every image has the text file at its own place; a damaged orientation is none, and 16 bits would be clipped."""
    write(tmp_path, "train", "day/a.bmp", "0 0.5 0.25 1 0.5")
    write(tmp_path, "train", "night/a.webp", "0 0.5 0.75 1 0.5")
    Image.new("RGB", (64, 64)).save(tmp_path / "images" / "train" / "z.jpg", exif=b"Exif\0\0no exif")
    (tmp_path / "images" / "train" / "b.heic").write_bytes(b"")
    with pytest.warns(UserWarning, match=f"in {tmp_path}/images/train, got others, too: left out 1 .heic$"):
        _, targets = read(tmp_path)
    assert targets[:, 0].tolist() == [[0, 0, 0, 64, 32], [0, 0, 32, 64, 64], [-1, 0, 0, 0, 0]]
    for kind in ("grey", "RGB"):
        deep = write_16_bits(tmp_path / "images" / "train" / "c.png", 4095, 3 if kind == "RGB" else 1)
        with pytest.raises(ConfigurationError, match=f"expected 8 bits per channel, got more in {deep}"):
            read(tmp_path)


def test_links_do_not_multiply_images(tmp_path: Path) -> None:
    """The images behind a link had no text files, and so no boxes."""
    write(tmp_path, "train", "a.png", "0 0.5 0.5 1 1")
    write(tmp_path, "test", "a.png", "0 0.5 0.5 1 1")
    (tmp_path / "images" / "train" / "latest").symlink_to(".")
    assert read(tmp_path)[1].shape == (1, 1, 5)
    shutil.rmtree(tmp_path / "images" / "test")
    (tmp_path / "images" / "test").symlink_to("train")
    with pytest.raises(ConfigurationError, match=r"expected different folders, got .*images/train and .*images/test"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["cafe\u0301.txt", "caf\u00e9.TXT"])
def test_a_text_file_that_looks_like_an_image_s_is_refused(tmp_path: Path, name: str) -> None:
    """Its image would have no boxes."""
    write(tmp_path, "train", "caf\u00e9.png", None)
    (tmp_path / "labels" / "train" / name).write_text("0 0.5 0.5 1 1")
    with pytest.raises(
        ConfigurationError, match=r"expected a text file 'caf\\xe9.txt', .* got 'caf.*, which looks the"
    ):
        read(tmp_path)


def test_text_files_of_no_image_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "train", "a.png", "0 0.5 0.5 1 1")
    for name in ("b.txt", "classes.txt"):
        (tmp_path / "labels" / "train" / name).write_text("")
    with pytest.warns(UserWarning, match=r"text files of images in .*labels/train, got 2 of no image, such as .*b.txt"):
        assert read(tmp_path)[1].shape == (1, 1, 5)


def test_what_knows_no_boxes_cannot_be_set() -> None:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(BoxFolder, "data")
    assert parser.parse_args(["--data.num_clients=3", "--data.batch_size=8"]).data.num_clients == 3
    for name in ("augment", "normalize"):
        with pytest.raises(jsonargparse.ArgumentError, match=name):
            parser.parse_args([f"--data.{name}=null"])
    with pytest.raises(ConfigurationError, match="BoxFolder has boxes with classes: leave corruption out"):
        BoxFolder(corruption=LabelSwap(0.5))


def test_partition_by_the_class_of_the_first_object() -> None:
    targets = torch.tensor([[[2.0, 0, 0, 1, 1], [1, 0, 0, 1, 1]], [[-1, 0, 0, 0, 0], [-1, 0, 0, 0, 0]]])
    assert BoxFolder(num_classes=3).labels(targets).tolist() == [2, 0]


def test_a_federated_round(tmp_path: Path) -> None:
    """Two clients with two images each; batches are in [0, 1]."""
    for split, count in (("train", 4), ("test", 2)):
        for index in range(count):
            write(tmp_path, split, f"{index}.jpg", "0 0.5 0.5 0.5 0.5" if index else None)
    data = BoxFolder(str(tmp_path), image_size=64, num_clients=2, batch_size=2)
    client = Detector(YOLOv8(width=2), optimizer=partial(torch.optim.SGD, lr=0.01))
    runner = trainer()
    runner.fit(FederatedOrchestrator(client, on_bad_update="raise"), datamodule=data)
    assert data.sizes.tolist() == [2, 2]
    assert 0 <= float(runner.callback_metrics["val/map50"]) <= 1
    images, targets = data.on_after_batch_transfer(next(iter(data.val_dataloader())), 0)
    assert images.dtype == torch.float32
    assert 0.9 < images.max() <= 1
    torch.testing.assert_close(targets, torch.tensor([[[-1.0, 0, 0, 0, 0]], [[0, 16, 16, 48, 48]]]))
