"""Images with boxes around objects: BoxData, their base class, and BoxFolder, in the text format of YOLO."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from PIL import Image, ImageOps
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.settings import Boxed, Labelled, Unpack
from fl_lightning.datamodules.files.folder import files_below, find_images, opened
from fl_lightning.datamodules.files.layout import check_apart, look
from fl_lightning.datamodules.images.image_data import ImageData
from fl_lightning.errors import ConfigurationError, check_at_least, refusal
from fl_lightning.later import later

GREY = 114  # grey level of the borders in the published YOLOv8
PADDING = (-1.0, 0.0, 0.0, 0.0, 0.0)  # row of the targets that stands for no box


class BoxData(ImageData):
    """Images with boxes around objects, for detection. A subclass defines ``num_classes`` and ``load``.

    Batches are ``[images (B, 3, S, S) in [0, 1], targets (B, M, 5)]``. A row of targets holds class, x1, y1, x2, y2 in
    pixels of the square; images with fewer than M objects are filled up with rows of class -1. A partition by label
    takes the class of an image's first object for the image's label, 0 if the image has no object.

    Args:
        image_size: S, the side of the square in pixels.
        eval_batch_size: examples per batch of the test set.
        images: ``num_clients``, ``partition`` and the other arguments of :class:`ImageData`, except ``augment``,
            ``corruption``, ``normalize`` and ``resize``, which do not support boxes.

    Raises:
        ConfigurationError: an argument is outside its range.
    """

    mean = (0.0, 0.0, 0.0)  # only gives the number of channels: images stay in [0, 1]

    @later(corruption=None)
    def __init__(self, image_size: int, eval_batch_size: int = 32, **images: Unpack[Boxed]) -> None:
        if images.get("corruption") is not None:
            raise ConfigurationError(
                f"corruption changes the class of an image, but {type(self).__name__} has boxes with classes: leave "
                "corruption out"
            )
        super().__init__(normalize=False, augment=None, resize=None, eval_batch_size=eval_batch_size, **images)
        self.image_size = image_size

    @override
    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Load the training or the test set: uint8 images (n, 3, S, S) and float32 targets (n, M, 5), M at least 1."""
        return super().load(train)

    @override
    def labels(self, targets: Tensor) -> Tensor:
        """Return the (n,) class of each image's first object, 0 for an image without objects."""
        return targets[:, 0, 0].clamp(min=0).long()


class BoxFolder(BoxData):
    """Your own images with boxes around objects, for detection, as YOLO's text files.

    Images are ``<root>/images/{train,test}/*``, or in folders therein, with ``<root>/labels/{train,test}/<name>.txt``.

    A text file has one line per object: class, then centre x, centre y, width and height as shares of the image's size.
    An image without a text file, or with an empty one, has no objects. Images are turned by their EXIF orientation,
    scaled to fit a square and centred on grey; boxes are cut off at the image's edges. Batches are those of
    :class:`BoxData`.

    Args:
        root: folder that holds ``images`` and ``labels``.
        num_classes: C, the number of classes; classes are numbered from 0.
        image_size: S, the side of the square in pixels.
        images: ``num_clients``, ``partition`` and the other arguments of :class:`BoxData`.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, a folder is missing, an image cannot be
            decoded, or a line of a text file is invalid.
    """

    places = ("root",)

    def __init__(
        self, root: str = "data", num_classes: int = 1, image_size: int = 640, **images: Unpack[Labelled]
    ) -> None:
        super().__init__(image_size, **images)
        check_at_least(1, num_classes=num_classes, image_size=image_size)
        self.root, self.num_classes = root, num_classes

    @override
    def missing(self) -> str | None:
        return refusal(lambda: [self._files(train) for train in (True, False)])

    @override
    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        files = self._files(train)
        check_texts(self._folder("labels", train), [text for _, text in files])
        pixels = np.empty((len(files), 3, self.image_size, self.image_size), dtype=np.uint8)
        boxes = []
        for row, (path, text) in zip(pixels, files, strict=True):
            square, place = letterbox(path, self.image_size)
            row[:] = np.asarray(square).transpose(2, 0, 1)
            boxes.append(read_boxes(text, self.num_classes, place))
        return torch.from_numpy(pixels), padded(boxes)

    def _files(self, train: bool) -> list[tuple[Path, Path]]:
        """List the images of the training or the test set, each with its text file."""
        images = self._folder("images", train)
        labels = self._folder("labels", train)
        check_apart([self._folder("images", part) for part in (True, False)])
        files = [Path(path) for path in find_images([images])[0]]
        if not labels.is_dir():
            raise ConfigurationError(f"expected a folder {labels}, got none: point root to the data (--data.root DIR)")
        return [(path, labels / path.relative_to(images).with_suffix(".txt")) for path in files]

    def _folder(self, kind: str, train: bool) -> Path:
        return Path(self.root).expanduser().absolute() / kind / ("train" if train else "test")


def check_texts(labels: Path, expected: Sequence[Path]) -> None:
    """Refuse a text file whose name only looks like that of an image; warn of those that are of no image.

    Args:
        labels: folder of the text files.
        expected: the text file that each image would have.
    """
    texts = [Path(file) for file in files_below(labels, labels.resolve(), {}) if file.lower().endswith(".txt")]
    known = {path.resolve() for path in expected}
    strangers = sorted(path for path in set(texts) - set(expected) if path.resolve() not in known)
    shown = {look(str(path)): path for path in expected if not path.exists()}
    for path in strangers:
        named = shown.get(look(str(path.with_suffix(".txt"))))
        if named is not None:
            raise ConfigurationError(
                f"expected a text file {named.name!a}, named as its image, in {labels}, got {path.name!a}, which "
                "looks the same: rename it"
            )
    if strangers:
        rank_zero_warn(
            f"expected text files of images in {labels}, got {len(strangers)} of no image, such as {strangers[0]}: "
            "they are left out"
        )


def letterbox(path: Path, size: int) -> tuple[Image.Image, tuple[int, int, int, int]]:
    """Scale an image file with its proportions kept, and centre it on a grey square.

    Args:
        path: image file.
        size: side of the square in pixels.

    Returns:
        The square, and the place of the image on the square: left, top, width, height in pixels.

    Raises:
        ConfigurationError: the file cannot be decoded.
    """
    with opened(path) as image:
        scaled = ImageOps.contain(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR)
    left, top = (size - scaled.width) // 2, (size - scaled.height) // 2
    square = Image.new("RGB", (size, size), (GREY, GREY, GREY))
    square.paste(scaled, (left, top))
    return square, (left, top, scaled.width, scaled.height)


def read_boxes(path: Path, num_classes: int, place: tuple[int, int, int, int]) -> list[tuple[float, ...]]:
    """Read the objects of one image.

    Args:
        path: text file with lines ``class cx cy w h``; no file means no objects.
        num_classes: C, the number of classes.
        place: place of the image on the square: left, top, width and height in pixels.

    Returns:
        One tuple (class, x1, y1, x2, y2) per object, in pixels of the square.

    Raises:
        ConfigurationError: a line is not five numbers, has a class that does not exist, or a centre or size outside the
            image; or the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError):
        raise ConfigurationError(f"expected a text file of boxes, got unreadable {path}: replace the file") from None
    return [
        _box(line, f"line {number} of {path}", num_classes, place)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def _box(line: str, where: str, num_classes: int, place: tuple[int, int, int, int]) -> tuple[float, ...]:
    try:
        label, x, y, width, height = map(float, line.split())
    except ValueError:  # not a number, or not five of them
        raise ConfigurationError(
            f"expected five numbers, class, centre x and y, width and height, in {where}, got {line.strip()[:60]!r}: "
            "correct the line"
        ) from None
    if not (label.is_integer() and 0 <= label < num_classes):
        raise ConfigurationError(
            f"expected a class from 0 to {num_classes - 1} in {where}, got {label:g}: correct the class or set "
            "num_classes"
        )
    if not all(0 <= value <= 1 for value in (x, y, width, height)) or not width * height > 0:
        raise ConfigurationError(
            f"expected centre and size as shares of the image's size, in [0, 1], with a size above 0, in {where}, got "
            f"{x:g} {y:g} {width:g} {height:g}: divide pixels by the image's size"
        )
    left, top, across, down = place
    cut = [min(max(edge, 0.0), 1.0) for edge in (x - width / 2, y - height / 2, x + width / 2, y + height / 2)]
    return (label, left + cut[0] * across, top + cut[1] * down, left + cut[2] * across, top + cut[3] * down)


def padded(boxes: Sequence[Sequence[tuple[float, ...]]]) -> Tensor:
    """Stack n lists of boxes into one tensor (n, M, 5): M is the longest list's length, at least 1."""
    longest = max(1, *map(len, boxes))
    filled = []
    for rows in boxes:
        padding = [PADDING] * (longest - len(rows))
        filled.append([*rows, *padding])
    return torch.tensor(filled, dtype=torch.float32)
