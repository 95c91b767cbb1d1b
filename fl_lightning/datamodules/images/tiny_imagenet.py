"""Tiny ImageNet, in its published files."""

from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.files.download import download, unpack
from fl_lightning.datamodules.files.folder import ImageFiles, find_image_folder, list_images, read_images
from fl_lightning.datamodules.files.layout import folder_names
from fl_lightning.datamodules.images.published import PublishedImages
from fl_lightning.errors import ConfigurationError

URL = "https://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"


class TinyImageNet(PublishedImages):
    """Photographs of 200 of ImageNet's classes (Stanford, 2015): 100,000 + 10,000 colour images of 64x64.

    The test set is the published ``val``, as is usual: the published ``test`` has no labels. Classes are numbered by
    sorted WordNet id; the few grey images become colour. The normalisation constants are measured over all pixels of
    the training set.

    The published files are ``wnids.txt``, ``train/<wnid>/images/*.JPEG``, ``val/images/*.JPEG`` and
    ``val/val_annotations.txt``, in ``root/tiny-imagenet-200`` or in ``root``. An image folder ``{train,val}/<class>/*``
    or ``{train,test}/<class>/*`` may lie in ``root/TinyImageNet``, ``root/tiny-imagenet-200`` or ``root``. Arguments:
    see PublishedImages.
    """

    name = "TinyImageNet"
    folder = "tiny-imagenet-200"
    published = (100_000, 10_000)
    image_size = (64, 64)
    num_classes = 200
    mean = (0.4802, 0.4481, 0.3975)
    std = (0.2770, 0.2691, 0.2821)
    decodes = True

    @override
    def files(self) -> list[str]:
        return ["wnids.txt", "train", "val"]

    def fetch(self, root: Path) -> None:
        """Download the archive, check its MD5 sum and unpack it."""
        archive = root / Path(URL).name
        download([URL], archive, MD5)
        unpack(archive)

    @override
    def _own_in(self, root: Path) -> Path:
        """Return ``root`` if it holds ``wnids.txt``, else ``root/tiny-imagenet-200``."""
        return root if (root / "wnids.txt").is_file() else super()._own_in(root)

    @override
    def _images_in(self, root: Path) -> tuple[Path, str] | None:
        """Return the image folder and the name of its test set; None if there is none, or for the published files."""
        own = self._own_in(root)
        splits = (own / split for split in ("val", "test"))
        rearranged = any(split.is_dir() and set(folder_names(split)) - {"images"} for split in splits)
        if (own / "wnids.txt").is_file() and not rearranged:
            return None
        return find_image_folder(root, [self.name, self.folder], tests=("val", "test"))

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read the published files: uint8 images (n, 3, 64, 64) and int64 labels (n,)."""
        own = self.own_folder()
        classes = self._classes(own)
        if train:
            files = list_images(own, "train", test="train")
            folders = folder_names(own / "train")
            if folders != classes:
                raise ConfigurationError(
                    f"expected the classes of {own / 'wnids.txt'} in {own / 'train'}, got "
                    f"{sorted(set(folders) ^ set(classes))[0]!r} in one of them alone: delete {own} and fetch it again "
                    "(--data.download true)"
                )
        else:
            files = _annotated(own, {name: label for label, name in enumerate(classes)})
        return read_images(files, (3, *self.image_size), self.cache)

    def _classes(self, own: Path) -> list[str]:
        """Read the sorted WordNet ids of the classes."""
        classes = sorted((own / "wnids.txt").read_text().split())
        if len(set(classes)) != self.num_classes or len(classes) != self.num_classes:
            raise ConfigurationError(
                f"expected {self.num_classes} different classes in {own / 'wnids.txt'}, got {len(set(classes))} in "
                f"{len(classes)} lines: delete {own} and fetch it again (--data.download true)"
            )
        return classes


def _annotated(own: Path, numbers: dict[str, int]) -> ImageFiles:
    """List the images of ``val`` in sorted order, with their labels from the annotations."""
    annotations = own / "val" / "val_annotations.txt"
    labels = {}
    for number, line in enumerate(annotations.read_text().splitlines(), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if not name or wnid not in numbers:
            raise ConfigurationError(
                f"expected an image, a class of wnids.txt and a box, tab-separated, in line {number} of {annotations}, "
                f"got {line[:60]!r}: delete {own} and fetch it again (--data.download true)"
            )
        labels[name] = numbers[wnid]
    there = {path.name for path in (own / "val" / "images").iterdir()}
    if odd := sorted(there ^ set(labels)):
        raise ConfigurationError(
            f"expected every image of {own / 'val'} in both images and val_annotations.txt, got {odd[0]} and "
            f"{len(odd) - 1} others in one of them alone: delete {own} and fetch it again (--data.download true)"
        )
    names = sorted(labels)
    files = [str(own / "val" / "images" / name) for name in names]
    return ImageFiles(own, "val", files, torch.tensor([labels[name] for name in names]))
