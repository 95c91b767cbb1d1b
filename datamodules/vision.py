"""The usual image classification sets: MNIST, FashionMNIST, CIFAR-10 and CIFAR-100."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchvision import datasets  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.datamodules.folder import find_image_folder, read_images
from fl_lightning.datamodules.images import ImageData
from fl_lightning.errors import ConfigurationError


class VisionData(ImageData):
    """One of torchvision's data sets, in its own files or as an image folder. A subclass says which.

    An image folder ``{train,test}/<class>/*`` (png or jpg) in ``root/<name>`` or in ``root`` goes first; classes are
    numbered in sorted order.

    Args:
        root: where the data lie, as torchvision understands it.
        download: fetch what is not there.
        images: ``num_clients``, ``partition``, ``proxy_per_class`` and all else that :class:`ImageData` takes.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, the data are not there or not as expected.
    """

    source: ClassVar[type[datasets.MNIST] | type[datasets.CIFAR10]]
    folder: ClassVar[str]  # torchvision's, under root
    image_size: ClassVar[tuple[int, int]]  # height, width

    def __init__(self, root: str = "data", download: bool = False, **images: Any) -> None:
        super().__init__(**images)
        self.root = root
        self.download = download

    def prepare_data(self) -> None:
        """Download what is missing, if asked to."""
        if not self.download or self._image_folder() is not None:
            return
        try:
            for train in (True, False):
                self.source(self._root(), train=train, download=True)
        except (RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ConfigurationError(
                f"expected to download {self.source.__name__} to {self._root()}, got {reason!r}: "
                "check the network and that the folder can be written, or put the files there yourself"
            ) from None

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """The training or the test set: uint8 images (n, C, H, W) and int64 labels (n,)."""
        if (folder := self._image_folder()) is None:
            return self._read_source(train)
        shape = (len(self.mean), *self.image_size)
        return read_images(folder, "train" if train else "test", self.num_classes, shape)

    def _root(self) -> Path:
        return Path(self.root).expanduser().absolute()

    def _image_folder(self) -> Path | None:
        return find_image_folder(self._root(), self.source.__name__)

    def _read_source(self, train: bool) -> tuple[Tensor, Tensor]:
        """From torchvision's own files."""
        root, name = self._root(), self.source.__name__
        try:
            source = self.source(root, train=train, download=False)
        except (RuntimeError, ValueError, KeyError, AssertionError, OSError):  # missing; the others: damaged
            raise ConfigurationError(
                f"expected {name} in {root / self.folder} (torchvision's files) or as an image folder "
                f"{{train,test}}/<class>/* in {root / name} or {root}, got none or damaged files: set "
                "download: true (--data.download true), point root to the data, or put an image folder there"
            ) from None
        images = torch.as_tensor(source.data)
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        return images, torch.as_tensor(source.targets)


class MNIST(VisionData):
    """Handwritten digits (LeCun et al., 1998): 60,000 + 10,000 grey images of 28x28. Arguments: see VisionData."""

    source = datasets.MNIST
    folder = "MNIST/raw"
    image_size = (28, 28)
    num_classes = 10
    mean = (0.1307,)
    std = (0.3081,)


class FashionMNIST(VisionData):
    """Clothes (Xiao et al., 2017): 60,000 + 10,000 grey images of 28x28. Arguments: see VisionData."""

    source = datasets.FashionMNIST
    folder = "FashionMNIST/raw"
    image_size = (28, 28)
    num_classes = 10
    mean = (0.2860,)
    std = (0.3530,)


class CIFAR10(VisionData):
    """Photographs (Krizhevsky, 2009): 50,000 + 10,000 colour images of 32x32. Arguments: see VisionData."""

    source = datasets.CIFAR10
    folder = "cifar-10-batches-py"
    image_size = (32, 32)
    num_classes = 10
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)


class CIFAR100(VisionData):
    """Photographs (Krizhevsky, 2009): 50,000 + 10,000 colour images of 32x32. Arguments: see VisionData."""

    source = datasets.CIFAR100
    folder = "cifar-100-python"
    image_size = (32, 32)
    num_classes = 100
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
