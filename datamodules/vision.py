"""The usual image classification sets: MNIST, FashionMNIST, CIFAR-10 and CIFAR-100."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchvision import datasets  # type: ignore[import-untyped]  # torchvision ships no types

from fl_lightning.datamodules.published import PublishedImages


class VisionData(PublishedImages):
    """One of torchvision's data sets, in its own files or as an image folder. A subclass sets ``source``.

    Arguments are those of :class:`PublishedImages`; ``root`` has the same meaning as in torchvision.
    """

    layout = "torchvision's files"
    source: ClassVar[type[datasets.MNIST] | type[datasets.CIFAR10]]

    def open(self, root: Path, train: bool, download: bool = False) -> Any:
        """Open torchvision's data set, which raises errors of its own if files are missing or damaged."""
        return self.source(root, train=train, download=download)

    def fetch(self, root: Path) -> None:
        """Download training and test set; torchvision checks both by MD5 sums."""
        for train in (True, False):
            self.open(root, train, download=True)

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read torchvision's own files: uint8 images (n, C, H, W), and torchvision's targets."""
        source = self.open(self.absolute_root(), train)
        images = torch.as_tensor(source.data)
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        return images, torch.as_tensor(source.targets)


class MNIST(VisionData):
    """Handwritten digits (LeCun et al., 1998): 60,000 + 10,000 grey images of 28x28. Arguments: see PublishedImages."""

    name = "MNIST"
    source = datasets.MNIST
    folder = "MNIST/raw"
    published = (60_000, 10_000)
    image_size = (28, 28)
    num_classes = 10
    mean = (0.1307,)
    std = (0.3081,)


class FashionMNIST(VisionData):
    """Clothes (Xiao et al., 2017): 60,000 + 10,000 grey images of 28x28. Arguments: see PublishedImages."""

    name = "FashionMNIST"
    source = datasets.FashionMNIST
    folder = "FashionMNIST/raw"
    published = (60_000, 10_000)
    image_size = (28, 28)
    num_classes = 10
    mean = (0.2860,)
    std = (0.3530,)


class CIFAR10(VisionData):
    """Photographs (Krizhevsky, 2009): 50,000 + 10,000 colour images of 32x32. Arguments: see PublishedImages."""

    name = "CIFAR10"
    source = datasets.CIFAR10
    folder = "cifar-10-batches-py"
    published = (50_000, 10_000)
    image_size = (32, 32)
    num_classes = 10
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)


class CIFAR100(VisionData):
    """Photographs (Krizhevsky, 2009): 50,000 + 10,000 colour images of 32x32. Arguments: see PublishedImages."""

    name = "CIFAR100"
    source = datasets.CIFAR100
    folder = "cifar-100-python"
    published = (50_000, 10_000)
    image_size = (32, 32)
    num_classes = 100
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
