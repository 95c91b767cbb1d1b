"""Functions that find image folders ``{train,test}/<class>/*`` and decode them into memory."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import track
from torch import Tensor

from fl_lightning.commands import some
from fl_lightning.datamodules.files.cache import cached
from fl_lightning.datamodules.files.layout import (
    check_apart,
    folder_names,
    leads_back,
    resolved,
    split_names,
    with_twin,
)
from fl_lightning.errors import ConfigurationError

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}  # as torchvision's ImageFolder
KINDS = "images (bmp, jpg, pgm, png, ppm, tif or webp)"
MODES = {1: "L", 3: "RGB"}  # number of channels, PIL's name of the mode


@dataclass(frozen=True)
class ImageFiles:
    """The image files of one split, and the class of each."""

    folder: Path
    split: str
    files: list[str]
    labels: Tensor  # (n,) int64

    def only(self, rows: Tensor) -> "ImageFiles":
        """Return the files of some rows (m,), which ascend."""
        if len(rows) == len(self.files):
            return self
        count = f"{self.split}, {len(rows)} of {len(self.files)}"
        return ImageFiles(self.folder, count, [self.files[row] for row in rows.tolist()], self.labels[rows])


def find_image_folder(root: Path, names: Sequence[str], tests: Sequence[str] = ("test",)) -> tuple[Path, str] | None:
    """Find the folder that holds ``train`` and a test set: ``root/<name>``, else ``root`` itself.

    Args:
        root: folder to search in.
        names: names of the data set; case, hyphens and underscores are ignored (cifar-10, Cifar10).
        tests: names that the folder of the test set may have, the preferred one first.

    Returns:
        The folder and the name of its test set; None if there is no such folder.
    """
    if not root.is_dir():
        return None
    wanted = {_plain(name) for name in names}
    for folder in [*(child for child in sorted(root.iterdir()) if _plain(child.name) in wanted), root]:
        tests_there = [test for test in tests if (folder / test).is_dir()]
        if tests_there and (folder / "train").is_dir():
            return folder, tests_there[0]
    return None


def list_images(folder: Path, split: str, test: str = "test", num_classes: int | None = None) -> ImageFiles:
    """List the image files in the folders ``<split>/<class>`` and in folders therein.

    Classes are numbered in sorted order; files are sorted within each class.

    Args:
        folder: folder that holds ``train`` and the test set.
        split: "train" or the name of the test set's folder.
        test: name of the test set's folder.
        num_classes: number of class folders to expect; None if unknown.

    Raises:
        ConfigurationError: the number of classes is not as expected, train and test have different classes, two classes
            look the same or are the same folder, or a class has no images.
    """
    other = test if split == "train" else "train"
    names = folder_names(folder / split)
    others = folder_names(folder / other)
    if num_classes is not None and len(names) != num_classes:
        raise ConfigurationError(
            f"expected {num_classes} class folders in {folder / split}, got {len(names)}: "
            "check that the folder holds this data set"
        )
    if odd := sorted(set(names) ^ set(others)):
        raise ConfigurationError(
            f"expected the same class folders in train and {test} of {folder}, got {with_twin(odd[0], odd)} in only "
            "one of them: give both the same class folders"
        )
    check_apart([folder / part / name for part in dict.fromkeys((split, other)) for name in names])
    warn_of_loose([folder / split])
    by_class = find_images([folder / split / name for name in names])
    sizes = torch.tensor([len(files) for files in by_class], dtype=torch.long)
    labels = torch.arange(len(names)).repeat_interleave(sizes)
    return ImageFiles(folder, split, [path for files in by_class for path in files], labels)


def found_splits(folder: Path, test: str) -> str:
    """Describe an image folder in one line: its splits, its classes, and the folders beside the splits.

    Args:
        folder: folder that holds ``train`` and the test set.
        test: name of the test set's folder.
    """
    classes = folder_names(folder / "train")
    others = [name for name in folder_names(folder) if name not in ("train", test)]
    unread = f"; not read: {some(others)}" if others else ""
    return f"{folder}: splits train and {test}; classes {some(classes)} ({len(classes)}){unread}"


def read_images(
    found: ImageFiles, shape: tuple[int, int, int], cache: str | None, resize: bool = False
) -> tuple[Tensor, Tensor]:
    """Decode image files, or read the decoded images from the cache.

    Args:
        found: files to decode, and their labels.
        shape: shape (C, H, W) of every image; C is 1 (colours become grey) or 3 (grey becomes colour).
        cache: folder that keeps decoded images; None to decode every time.
        resize: whether to scale images of other sizes until they cover H x W (bilinear, antialiased) and cut out the
            middle; otherwise such images are refused.

    Returns:
        uint8 images (n, C, H, W) and int64 labels (n,).

    Raises:
        ConfigurationError: an image has another size without ``resize``, or a file cannot be decoded.
    """

    def decode() -> Tensor:
        images = torch.empty(len(found.files), *shape, dtype=torch.uint8)
        screen = Console(stderr=True)
        bar = track(
            found.files, f"decoding {found.split}", console=screen, transient=True, disable=not screen.is_terminal
        )
        for image, path in zip(images, bar, strict=True):
            decode_image(path, image, resize)
        return images

    kind = f"{found.split} {'resized' if resize else 'exact'}"
    return cached(cache, found.folder, kind, found.files, (len(found.files), *shape), decode), found.labels


def find_images(folders: Sequence[Path], may_be_empty: bool = False) -> list[list[str]]:
    """List the image files in each folder and below, sorted; warn of other files.

    Links are followed: a folder that is reached again from the same one of ``folders``, or that is above it, is read
    once.

    Raises:
        ConfigurationError: a folder has no images, and may not be empty; links lead from two of the folders to the same
            one; a folder has train and test within; or it cannot be read.
    """
    by_folder: list[list[str]] = []
    others: Counter[str] = Counter()
    readers: dict[Path, Path] = {}
    for folder, real in zip(folders, resolved(folders), strict=True):
        images: list[str] = []
        for path in files_below(folder, real, readers):
            name = os.path.basename(path)  # noqa: PTH119  # fast
            suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122  # fast
            if suffix in SUFFIXES:
                images.append(path)
            elif suffix != ".txt" and not name.startswith("."):  # as TinyImageNet has texts
                others[suffix or "without suffix"] += 1
        by_folder.append(sorted(images))
        if not images and not may_be_empty:
            raise ConfigurationError(f"expected {KINDS} in {folder}, got none: add images, or correct root")
    if others:
        words = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(5))
        rank_zero_warn(f"expected {KINDS} in {os.path.commonpath(folders)}, got others, too: left out {words}")
    return by_folder


def files_below(folder: Path, real: Path, readers: dict[Path, Path]) -> Iterator[str]:
    """Yield the paths of the files in a folder and below, without hidden folders.

    Args:
        folder: the folder, which need not exist.
        real: the resolved path of the folder.
        readers: by the resolved path of each folder that was read, the folder from which the reading began; new ones
            are added.
    """
    waiting = [(folder, real)] if folder.is_dir() else []
    while waiting:
        place, real = waiting.pop()
        reader = readers.get(real)
        if reader == folder:
            continue
        if reader is not None:
            raise ConfigurationError(
                f"expected the images of {reader} and of {folder} to be different ones, got {real} in both by a link: "
                "take the link away"
            )
        readers[real] = folder
        inner: list[Path] = []
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    is_folder = Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()
                    if not is_folder:
                        yield entry.path
                    elif not entry.name.startswith("."):
                        inner.append(Path(entry.path))
        except OSError as error:
            raise ConfigurationError(f"expected to read {place}, got {error.strerror}: make it readable") from None
        splits = split_names([path.name for path in sorted(inner)])
        if len(splits) > 1:
            raise ConfigurationError(
                f"expected the images of one split in {place}, got folders {', '.join(splits)}: put splits above the "
                "classes, {train,test}/<class>"
            )
        for path in sorted(inner, reverse=True):
            if not leads_back(path, folder):
                waiting.append((path, path.resolve() if path.is_symlink() else real / path.name))


def warn_of_loose(folders: Sequence[Path]) -> None:
    """Warn of images that lie beside folders of classes, where nothing reads them."""
    loose: list[str] = []
    for folder in folders:
        with os.scandir(folder) as entries:
            loose += [entry.path for entry in entries if os.path.splitext(entry.name)[1].lower() in SUFFIXES]  # noqa: PTH122
    if loose:
        rank_zero_warn(
            f"expected images in folders of classes, got {len(loose)} beside such folders, such as {min(loose)}: they "
            "are left out"
        )


def commonest_size(files: Sequence[str], most: int = 200) -> tuple[int, int]:
    """Return the height and width that most of the image files have, looking at ``most`` of them at equal distances."""
    step = -(-len(files) // most)
    sizes: Counter[tuple[int, int]] = Counter()
    for path in files[::step]:
        with opened(path) as image:
            sizes[image.height, image.width] += 1
    (size, count), *_ = sizes.most_common()
    if others := sizes.total() - count:
        height, width = size
        rank_zero_warn(
            f"image_size is {height}x{width}, the commonest size; {others} of {sizes.total()} images looked at have "
            "other sizes: they are scaled until they cover it, and their middle is cut out; image_size sets another"
        )
    return size


@contextmanager
def opened(file: str | Path | BinaryIO, name: str = "", header: bool = False) -> Iterator[Image.Image]:
    """Open an image of 8 bits per channel, turned upright by its EXIF orientation; refuse all other images.

    Args:
        file: path of the image file, or its content.
        name: name of the image in messages; by default, its path.
        header: whether to read the size and the mode alone, before the image is turned.
    """
    name = name or str(file)
    try:
        with Image.open(file, formats=("PNG", "JPEG", "BMP", "PPM", "TIFF", "WEBP")) as image:
            scale: Any = image.tile[0].args if image.format == "PPM" else ""  # ends in a number if PIL scales by it
            deep = isinstance(scale[-1:], tuple) and scale[-1] > 255
            if image.mode[0] in "IF" or deep or re.search(";16[BLN]", str(image.tile)):  # PIL would drop bits
                raise ConfigurationError(f"expected 8 bits per channel, got more in {name} ({image.mode}): convert it")
            if not header:
                image.load()
                with suppress(Exception):  # damaged EXIF data: the image as it is stored
                    ImageOps.exif_transpose(image, in_place=True)
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # errors that PIL raises
        reason = str(error).replace(f" {file!r}", "") if isinstance(file, BytesIO) else error  # no address in memory
        raise ConfigurationError(f"expected {KINDS}, got unreadable {name} ({reason}): replace or shrink it") from None


def decode_image(file: str | BinaryIO, pixels: Tensor, resize: bool, name: str = "") -> None:
    """Decode one image into a uint8 tensor (C, H, W); arguments as for :func:`read_images` and :func:`opened`."""
    channels, height, width = pixels.shape
    with opened(file, name) as image:
        if image.size != (width, height) and not resize:
            raise ConfigurationError(
                f"expected images of {width}x{height} pixels, got {image.width}x{image.height} in {name or file}: "
                "resize the images beforehand"
            )
        converted = image if image.mode == MODES[channels] else image.convert(MODES[channels])
        if converted.size != (width, height):
            converted = ImageOps.fit(converted, (width, height), Image.Resampling.BILINEAR)
        rows = np.asarray(converted).reshape(height, width, channels)
        pixels.numpy()[:] = rows.transpose(2, 0, 1)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
