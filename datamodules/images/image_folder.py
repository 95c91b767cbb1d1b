"""ImageFolder: your own images, one folder per class."""

import math
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.settings import Images, Unpack
from fl_lightning.datamodules.files.cache import CACHE
from fl_lightning.datamodules.files.folder import MODES, class_names, find_image_folder, list_images, read_images
from fl_lightning.datamodules.images.image_data import ImageData
from fl_lightning.errors import ConfigurationError, check_choice, refusal


class ImageFolder(ImageData):
    """Your own images, in a folder for each class.

    The images are ``root/{train,test}/<class>/*`` or ``root/{train,val}/<class>/*``, or deeper. Classes are counted on
    loading and numbered in sorted order; train and test must have the same class names. Images are turned by their EXIF
    orientation, scaled until they cover ``image_size`` (bilinear, antialiased), and their middle is cut out.

    Args:
        root: folder that holds ``train`` and the test set: ``test`` or, if there is no ``test``, ``val``.
        image_size: height and width in pixels, or one number for both.
        channels: 3, where grey images become colour, or 1, where colour images become grey.
        mean: mean of each channel of inputs in [0, 1]; null to measure mean and standard deviation on the training set.
        std: standard deviation of each channel, above 0; null if ``mean`` is null.
        cache: folder that keeps decoded images for the next run; null for none. In the default, ``$XDG_CACHE_HOME``, if
            set, takes the place of ``~/.cache``.
        images: ``num_clients``, ``partition``, ``augment`` and the other arguments of :class:`ImageData`.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, the data are missing or invalid.
    """

    def __init__(
        self,
        root: str,
        image_size: int | tuple[int, int],
        channels: Literal[1, 3] = 3,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        cache: str | None = CACHE,
        **images: Unpack[Images],
    ) -> None:
        super().__init__(**images)
        size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
        if len(size) != 2 or min(size) < 1:
            raise ConfigurationError(f"expected image_size to be pixels >= 1, or height and width, got {image_size}")
        check_choice("channels", channels, *MODES)
        if mean is not None or std is not None:
            self.mean, self.std = check_constants(mean, std, channels)
        self.root = root
        self.shape = (channels, size[0], size[1])
        self.measured = mean is None
        self.cache = cache

    @property
    def num_classes(self) -> int:  # type: ignore[override]  # read only: counted in the folders
        """C, the number of class folders of the training set."""
        return len(class_names(self._folder()[0] / "train"))

    @override
    def missing(self) -> str | None:
        return refusal(self._folder)

    def prepare_data(self) -> None:
        """Decode the images into the cache, where other processes find them."""
        if self.cache is not None:
            self.setup("fit")

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Load the training or the test set: uint8 images (n, C, H, W) and int64 labels (n,)."""
        folder, test = self._folder()
        files = list_images(folder, "train" if train else test, test)
        images, labels = read_images(files, self.shape, self.cache, resize=True)
        if train and self.measured:
            self.mean, self.std = measure(images)
        return images, labels

    def _folder(self) -> tuple[Path, str]:
        root = Path(self.root).expanduser().absolute()
        folder = find_image_folder(root, [], tests=("test", "val"))
        if folder is None:
            raise ConfigurationError(
                f"expected an image folder {{train,test}}/<class>/* or {{train,val}}/<class>/* in {root}, got none: "
                "point root to such a folder (--data.root DIR)"
            )
        return folder


def check_constants(
    mean: tuple[float, ...] | None, std: tuple[float, ...] | None, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Refuse constants that are not one finite mean and one finite standard deviation > 0 per channel; return both."""
    if mean is not None and std is not None and len(mean) == len(std) == channels:
        finite = all(map(math.isfinite, mean))
        if finite and all(0 < value < math.inf for value in std):
            return tuple(mean), tuple(std)
    raise ConfigurationError(
        f"expected mean and std > 0 of each of {channels} channels, or neither, got {mean} and {std}: give both"
    )


def measure(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure mean and standard deviation of each channel of uint8 images (n, C, H, W), scaled to [0, 1].

    Both are computed over all pixels, exactly, from the counts of the 256 values. A constant channel gets the standard
    deviation 1.
    """
    return constants_of(torch.stack([count_values(part) for part in torch.split(images, 1000)]).sum(0))


def count_values(images: Tensor) -> Tensor:
    """Count the 256 values of each channel of uint8 images (n, C, H, W): (C, 256) int64."""
    return torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)])


def constants_of(counts: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel from the counts of its values; see :func:`measure`."""
    values = torch.arange(256, dtype=torch.float64) / 255
    constants = []
    for channel in counts:
        share = channel.double() / channel.sum()
        mean = share @ values
        constants.append((mean.item(), (share @ (values - mean) ** 2).sqrt().item() or 1.0))
    means, stds = zip(*constants, strict=True)
    return means, stds
