"""PublishedImages: what data sets with files of their own have in common."""

from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fl_lightning.datamodules.cache import CACHE
from fl_lightning.datamodules.download import download_whole
from fl_lightning.datamodules.folder import find_image_folder, list_images, read_images
from fl_lightning.datamodules.images import ImageData
from fl_lightning.errors import ConfigurationError

UNREADABLE = (RuntimeError, ValueError, KeyError, IndexError, TypeError, AssertionError, EOFError, OSError)


class PublishedImages(ImageData):
    """A published data set, in its own files or as an image folder. A subclass says which, and how to read and fetch.

    An image folder ``{train,test}/<class>/*`` (png or jpg) in ``root/<name>`` or in ``root`` goes first; classes are
    numbered in sorted order. Damaged files are named, never repaired or deleted; fewer images than were published give
    a warning.

    Args:
        root: where the data lie.
        download: fetch what is not there.
        cache: folder that keeps decoded images for the next run; null for none. ``~/.cache`` stands for
            ``$XDG_CACHE_HOME`` where that is set.
        images: ``num_clients``, ``partition``, ``augment`` and all else that :class:`ImageData` takes.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, the data are not there or not as expected.
    """

    name: str
    folder: str  # its own files, under root
    layout = "the files as published"
    image_size: tuple[int, int]  # height, width
    published: tuple[int, int]  # training and test images
    decodes = False  # whether its own files are images to be decoded

    def __init__(self, root: str = "data", download: bool = False, cache: str | None = CACHE, **images: Any) -> None:
        super().__init__(**images)
        self.root = root
        self.download = download
        self.cache = cache

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """The training or the test set from its own files, as :meth:`load` gives it; raises one of UNREADABLE."""
        raise ConfigurationError(f"{type(self).__name__} must define read(train)")

    def fetch(self, root: Path) -> None:
        """Download ``root/folder``, checked; raises RuntimeError or OSError."""
        raise ConfigurationError(f"{type(self).__name__} must define fetch(root)")

    def prepare_data(self) -> None:
        """Download what is missing, if asked to; decode, so that other processes find the images in the cache."""
        found = self.image_folder()
        if self.download and found is None and not self.own_folder().exists():
            download_whole(self.absolute_root(), self.folder, self.fetch, self.name)
        if self.cache is not None and (found is not None or self.decodes):
            self.setup("fit")

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """The training or the test set: uint8 images (n, C, H, W) and int64 labels (n,)."""
        if (found := self.image_folder()) is not None:
            folder, test = found
            files = list_images(folder, "train" if train else test, test, self.num_classes)
            images, labels = read_images(files, (len(self.mean), *self.image_size), self.cache)
        else:
            folder = self.own_folder()
            images, labels = self._read_own(folder, train)
        if len(images) != (expected := self.published[not train]):
            rank_zero_warn(
                f"{self.name}: {len(images):,} of {expected:,} {'training' if train else 'test'} images are in "
                f"{folder}: it may be half unpacked"
            )
        return images, labels

    def absolute_root(self) -> Path:
        """Where the data lie."""
        return Path(self.root).expanduser().absolute()

    def own_folder(self) -> Path:
        """Where its own files are, or would be."""
        return self.absolute_root() / self.folder

    def image_folder(self) -> tuple[Path, str] | None:
        """The image folder and the name of its test set, if there is one."""
        return find_image_folder(self.absolute_root(), [self.name])

    def _read_own(self, folder: Path, train: bool) -> tuple[Tensor, Tensor]:
        root = self.absolute_root()
        try:
            return self.read(train)
        except UNREADABLE:
            if folder.exists():
                raise ConfigurationError(
                    f"expected {self.name} in {folder}, got damaged or incomplete files: delete {folder} and fetch "
                    "them again (--data.download true)"
                ) from None
            raise ConfigurationError(
                f"expected {self.name} in {folder} ({self.layout}) or as an image folder {{train,test}}/<class>/*"
                f" in {root / self.name} or {root}, got neither: set download: true (--data.download true), point root "
                "to the data, or put an image folder there"
            ) from None
