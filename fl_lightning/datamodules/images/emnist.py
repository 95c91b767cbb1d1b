"""EMNIST, and QMNIST, which knows the writers of its digits."""

from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torchvision import datasets  # type: ignore[import-untyped]  # torchvision ships no types
from typing_extensions import override

from fl_lightning.datamodules.base.settings import Published, Unpack
from fl_lightning.datamodules.images.vision import Archive, VisionData
from fl_lightning.errors import check_choice

SPLITS = {  # split: number of classes, of training images and of test images
    "balanced": (47, 112_800, 18_800),
    "byclass": (62, 697_932, 116_323),
    "bymerge": (47, 697_932, 116_323),
    "digits": (10, 240_000, 40_000),
    "letters": (26, 124_800, 20_800),
    "mnist": (10, 60_000, 10_000),
}


class EMNIST(VisionData):
    """Handwritten digits and letters (Cohen et al., 2017): grey images of 28x28.

    Classes are in torchvision's order: digits, capital letters, small letters, without the classes that a split merges
    or leaves out; in "letters", A is class 0 (1 in the files). Images are upright (in the files they are mirrored along
    the diagonal). The normalisation constants are those of "byclass"; the constants of the other splits differ by less
    than 0.002.

    The files do not name the writers, so that FEMNIST (Caldas et al., 2018) cannot be made from these files: for
    clients that are writers see :class:`QMNIST`.

    Args:
        split: "balanced" (47 classes, 112,800 + 18,800 images), "byclass" (62; 697,932 + 116,323), "bymerge" (47;
            697,932 + 116,323), "digits" (10; 240,000 + 40,000), "letters" (26; 124,800 + 20,800) or "mnist" (10;
            60,000 + 10,000).
        published: ``root``, ``download``, ``cache`` and the other arguments of :class:`PublishedImages`.

    Raises:
        ConfigurationError: ``split`` is none of these, or as for :class:`PublishedImages`.
    """

    name = "EMNIST"
    source = datasets.EMNIST
    folder = "EMNIST/raw"
    image_size = (28, 28)
    mean = (0.1736,)
    std = (0.3317,)

    def __init__(
        self,
        split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "balanced",
        **published: Unpack[Published],
    ) -> None:
        super().__init__(**published)
        check_choice("split", split, *SPLITS)
        self.split = split
        self.num_classes, *sizes = SPLITS[split]
        self.published = (sizes[0], sizes[1])

    @override
    def archives(self) -> list[Archive]:
        return [Archive([self.source.url], f"{self.folder}/{Path(self.source.url).name}", self.source.md5)]

    @override
    def files(self) -> list[str]:
        kinds = ("images-idx3", "labels-idx1")
        return [f"emnist-{self.split}-{part}-{kind}-ubyte" for part in ("train", "test") for kind in kinds]

    def open(self, root: Path, train: bool, download: bool = False) -> Any:
        """Open torchvision's data set; a single archive holds all splits."""
        return self.source(root, split=self.split, train=train, download=download)

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read torchvision's own files: uint8 images (n, 1, 28, 28) and int64 labels (n,)."""
        images, labels = super().read(train)
        return images.transpose(2, 3).contiguous(), labels - int(self.split == "letters")


class QMNIST(VisionData):
    """MNIST's digits with their writers (Yadav and Bottou, 2019): 60,000 + 60,000 grey images of 28x28.

    With ``partition: Natural`` every client is one writer, or several if there are fewer clients than writers. Of
    torchvision's data sets, this is the closest to FEMNIST, which torchvision does not have. Training and test writers
    are different people. Read from an image folder, the data set has no writers. Arguments: see PublishedImages.
    """

    name = "QMNIST"
    source = datasets.QMNIST
    folder = "QMNIST/raw"
    published = (60_000, 60_000)
    image_size = (28, 28)
    num_classes = 10
    mean = (0.1307,)
    std = (0.3081,)

    @override
    def archives(self) -> list[Archive]:
        resources = [*self.source.resources["train"], *self.source.resources["test"]]
        return [Archive([url], f"{self.folder}/{Path(url).name}", md5) for url, md5 in resources]

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read torchvision's own files: uint8 images (n, 1, 28, 28) and int64 labels (n,)."""
        images, targets = super().read(train)
        return images, targets[:, 0]

    def groups(self) -> Tensor | None:
        """Return each training image's writer (n,), NIST's number in column 3 of the labels; None for image folders."""
        if self.image_folder() is not None:
            return None
        return super().read(train=True)[1][:, 2]
