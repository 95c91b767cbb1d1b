"""Image folders ``{train,test}/<class>/*``, decoded into memory."""

from itertools import chain
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fl_lightning.errors import ConfigurationError

SUFFIXES = {".png", ".jpg", ".jpeg"}
MODES = {1: "L", 3: "RGB"}  # PIL's name for so many channels


def find_image_folder(root: Path, name: str) -> Path | None:
    """The folder that holds ``train`` and ``test``: ``root/<name>``, in any spelling (cifar-10, CIFAR10), or ``root``.

    Returns:
        None where there is no such folder.
    """
    if not root.is_dir():
        return None
    named = [child for child in sorted(root.iterdir()) if _plain(child.name) == _plain(name)]
    return next((p for p in [*named, root] if (p / "train").is_dir() and (p / "test").is_dir()), None)


def read_images(folder: Path, split: str, num_classes: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Decode ``<split>/<class>/*.png`` and ``*.jpg``; classes are numbered in sorted order, files sorted within them.

    Args:
        folder: holds ``train`` and ``test``.
        split: one of the two.
        num_classes: how many class folders there must be, named alike in train and test.
        shape: (C, H, W) of every image; C is 1 (colours become grey) or 3. H and W must be right.

    Returns:
        uint8 images (n, C, H, W) and int64 labels (n,).

    Raises:
        ConfigurationError: the classes or an image's size differ from that, or a file cannot be decoded.
    """
    files = [_images(folder / split / name) for name in _classes(folder, split, num_classes)]
    channels, height, width = shape
    pixels = np.empty((sum(map(len, files)), height, width, channels), dtype=np.uint8)
    for row, path in zip(pixels, chain.from_iterable(files), strict=True):
        row[:] = _decode(path, channels, height, width)
    labels = torch.arange(num_classes).repeat_interleave(torch.tensor([len(found) for found in files]))
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), labels


def _classes(folder: Path, split: str, num_classes: int) -> list[str]:
    """The sorted names of the class folders, the same in train and test so that numbers mean the same."""
    train, test = (
        sorted(p.name for p in (folder / each).iterdir() if p.is_dir() and not p.name.startswith("."))
        for each in ("train", "test")
    )
    names = train if split == "train" else test
    if len(names) != num_classes:
        raise ConfigurationError(
            f"expected {num_classes} class folders in {folder / split}, got {len(names)}: "
            "check that this is the data set"
        )
    if train != test:
        raise ConfigurationError(
            f"expected the same class folders in train and test of {folder}, got "
            f"{sorted(set(train) ^ set(test))[0]} in one of them alone: name them alike"
        )
    return names


def _images(folder: Path) -> list[Path]:
    """The sorted image files of one class, at least one."""
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
    if not found:
        raise ConfigurationError(f"expected png or jpg images in {folder}, got none: add them")
    return found


def _decode(path: Path, channels: int, height: int, width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(H, W, C) pixels of one file."""
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            if image.size != (width, height):
                raise ConfigurationError(
                    f"expected images of {width}x{height} pixels, got {image.width}x{image.height} in {path}: "
                    "resize the images beforehand"
                )
            mode = MODES[channels]
            converted = image if image.mode == mode else image.convert(mode)
            return np.asarray(converted).reshape(height, width, channels)
    except OSError:  # also PIL's own errors
        raise ConfigurationError(f"expected a png or jpg image, got unreadable {path}: replace the file") from None


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
