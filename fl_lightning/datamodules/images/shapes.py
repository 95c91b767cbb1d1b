"""Shapes: drawn squares, discs and triangles with boxes around them, for detection without a download."""

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.settings import Labelled, Unpack
from fl_lightning.datamodules.images.boxes import BoxData, padded
from fl_lightning.errors import check_at_least
from fl_lightning.seeding import generator

SIZES = {"train": 2000, "test": 400}  # numbers of images
SQUARE, DISC, TRIANGLE = range(3)
SAME_CLASS = 0.8  # chance that another object of an image has the class of the first one
CELLS = 8  # places of the texture's random colours across an image
TEXTURE, JITTER = (80, 176), 48  # grey levels of a texture; distance of an object's channels to 0 or 255, below


class Shapes(BoxData):
    """2,000 training and 400 test images of drawn squares, discs and triangles, with boxes; they need no download.

    An image has one to three objects on a smooth random texture, each in a quarter of its own, so that none covers
    another. Sides are odd numbers of pixels, up to half of the image's side; colours, places and textures are random.
    Classes are 0 (square), 1 (disc) and 2 (triangle). The first object's class is uniform, and each other object has
    the same class with probability 0.8 and a uniform one otherwise: clients whose images differ in their first object
    differ in most objects. The images are the same for every seed of a run. Batches are those of :class:`BoxData`.

    Args:
        image_size: S, the side of the images in pixels, at least 16.
        images: ``num_clients``, ``partition`` and the other arguments of :class:`BoxData`.

    Raises:
        ConfigurationError: an argument is outside its range.
    """

    num_classes = 3

    def __init__(self, image_size: int = 64, **images: Unpack[Labelled]) -> None:
        super().__init__(image_size, **images)
        check_at_least(16, image_size=image_size)

    @override
    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        split = "train" if train else "test"
        draws = generator(0, f"shapes {split}")  # not the run's seed: all runs have the same images
        drawn = [draw_image(self.image_size, draws) for _ in range(SIZES[split])]
        return torch.stack([image for image, _ in drawn]), padded([boxes for _, boxes in drawn])


def draw_image(size: int, draws: torch.Generator) -> tuple[Tensor, list[tuple[float, ...]]]:
    """Draw one image and the boxes of its objects.

    Args:
        size: S, the side of the image in pixels, at least 16.
        draws: source of randomness.

    Returns:
        uint8 image (3, S, S), and one tuple (class, x1, y1, x2, y2) per object, in pixels.
    """

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=draws))

    places = torch.randint(*TEXTURE, (1, 3, CELLS, CELLS), generator=draws).float()
    image = F.interpolate(places, size=(size, size), mode="bilinear")[0].to(torch.uint8)
    boxes: list[tuple[float, ...]] = []
    half = size // 2
    first = integer(0, 3)
    for place, quarter in enumerate(torch.randperm(4, generator=draws)[: integer(1, 4)].tolist()):
        same = place == 0 or torch.rand((), generator=draws) < SAME_CLASS
        kind = first if same else integer(0, 3)
        radius = integer(size // 12, (half + 1) // 2)
        left, top = (corner * half + integer(0, half - 2 * radius) for corner in divmod(quarter, 2))
        right = left + 2 * radius + 1
        bottom = top + 2 * radius + 1
        dark = torch.randint(JITTER, (3, 1), generator=draws, dtype=torch.uint8)
        colour = torch.where(torch.rand(3, 1, generator=draws) < 0.5, dark, 255 - dark)
        image[:, top:bottom, left:right][:, mask(kind, radius)] = colour
        boxes.append((kind, left, top, right, bottom))
    return image, boxes


def mask(kind: int, radius: int) -> Tensor:
    """Return the pixels of an object, bool (2r + 1, 2r + 1); the first and last rows and columns hold some of them.

    Args:
        kind: class of the object, 0 (square), 1 (disc) or 2 (triangle with the apex on top).
        radius: r, the distance in pixels from the centre to each side, at least 1.
    """
    y, x = torch.meshgrid(*[torch.arange(-radius, radius + 1) / (radius + 0.5)] * 2, indexing="ij")
    return {SQUARE: x.abs() <= 1, DISC: x**2 + y**2 <= 1, TRIANGLE: x.abs() <= (y + 1) / 2}[kind]
