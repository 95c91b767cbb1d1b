"""The usual image classification sets: MNIST, FashionMNIST, CIFAR-10 and CIFAR-100."""

import hashlib
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torchvision import datasets  # type: ignore[import-untyped]  # torchvision ships no types
from typing_extensions import override

from fl_lightning.datamodules.files.download import download
from fl_lightning.datamodules.images.published import PublishedImages

# torchvision's data sets, downloaded by HTTPS alone. torchvision names the folder of the data after the class.
SecureMNIST = type(
    "MNIST",
    (datasets.MNIST,),
    {
        "mirrors": ["https://ossci-datasets.s3.amazonaws.com/mnist/"],
        "sha256": {
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    },
)
SecureFashionMNIST = type(
    "FashionMNIST",
    (datasets.FashionMNIST,),
    {"mirrors": ["https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"]},
)


class Archive(NamedTuple):
    """A file to download.

    Attributes:
        urls: addresses that serve the file, the preferred one first.
        file: path of the file below the folder of the data.
        md5: MD5 sum in hexadecimal digits.
    """

    urls: list[str]
    file: str
    md5: str


class VisionData(PublishedImages):
    """One of torchvision's data sets, in its own files or as an image folder. A subclass sets ``source``.

    Arguments are those of :class:`PublishedImages`; ``root`` has the same meaning as in torchvision.
    """

    source: ClassVar[type[datasets.MNIST] | type[datasets.CIFAR10]]

    def archives(self) -> list[Archive]:
        """Return the files that torchvision would download."""
        if issubclass(self.source, datasets.CIFAR10):
            return [Archive([self.source.url], self.source.filename, self.source.tgz_md5)]
        return [
            Archive([mirror + name for mirror in self.source.mirrors], f"{self.folder}/{name}", md5)
            for name, md5 in self.source.resources
        ]

    @override
    def files(self) -> list[str]:
        if issubclass(self.source, datasets.CIFAR10):
            batches = [*self.source.train_list, *self.source.test_list]
            return [self.source.meta["filename"], *(name for name, _ in batches)]
        return [Path(archive.file).stem for archive in self.archives()]

    def open(self, root: Path, train: bool, download: bool = False) -> Any:
        """Open torchvision's data set, which raises errors of its own if files are missing or damaged."""
        return self.source(root, train=train, download=download)

    def fetch(self, root: Path) -> None:
        """Download the archives; torchvision, which finds them there, checks their MD5 sums and unpacks them.

        If ``source`` lists SHA-256 sums, these are checked, too.
        """
        for archive in self.archives():
            download(archive.urls, root / archive.file, archive.md5)
        for train in (True, False):
            self.open(root, train, download=True)
        for archive in self.archives():
            (root / archive.file).unlink()
        for file, digest in self.source.sha256.items() if hasattr(self.source, "sha256") else ():
            if hashlib.sha256((root / self.folder / file).read_bytes()).hexdigest() != digest:
                raise RuntimeError(f"{file} does not have the SHA-256 sum {digest}")

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read torchvision's own files: uint8 images (n, C, H, W), and torchvision's targets."""
        source = self.open(self.absolute_root(), train)
        images = torch.as_tensor(source.data)
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        return images, torch.as_tensor(source.targets)


class MNIST(VisionData):
    """Handwritten digits (LeCun et al., 1998): 60,000 + 10,000 grey images of 28x28. Arguments: see PublishedImages."""

    name = "MNIST"
    source = SecureMNIST
    folder = "MNIST/raw"
    published = (60_000, 10_000)
    image_size = (28, 28)
    num_classes = 10
    mean = (0.1307,)
    std = (0.3081,)


class FashionMNIST(VisionData):
    """Clothes (Xiao et al., 2017): 60,000 + 10,000 grey images of 28x28. Arguments: see PublishedImages."""

    name = "FashionMNIST"
    source = SecureFashionMNIST
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
