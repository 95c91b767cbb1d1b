"""PublishedImages: the base class of published data sets with files of their own."""

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
    """A published data set, in its own files or as an image folder. A subclass defines :meth:`read` and :meth:`fetch`.

    An image folder ``{train,test}/<class>/*`` (png or jpg) in ``root/<name>`` or in ``root`` takes precedence over the
    data set's own files; its classes are numbered in sorted order. Damaged files raise an error that names them;
    they are never repaired or deleted. A number of images other than published gives a warning.

    Args:
        root: folder of the data.
        download: whether to download the data set if it is missing.
        cache: folder that keeps decoded images for the next run; null for none. In the default, ``$XDG_CACHE_HOME``
            takes the place of ``~/.cache`` if it is set.
        images: ``num_clients``, ``partition``, ``augment`` and the other arguments of :class:`ImageData`.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, the data are missing or invalid.
    """

    name: str
    folder: str  # folder of the data set's own files, below root
    layout = "the files as published"
    image_size: tuple[int, int]  # height, width
    published: tuple[int, int]  # numbers of training and test images
    decodes = False  # whether the data set's own files are images to be decoded

    def __init__(self, root: str = "data", download: bool = False, cache: str | None = CACHE, **images: Any) -> None:
        super().__init__(**images)
        self.root = root
        self.download = download
        self.cache = cache

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read training or test set from the data set's own files, as :meth:`load`; may raise one of ``UNREADABLE``."""
        raise ConfigurationError(f"{type(self).__name__} must define read(train)")

    def fetch(self, root: Path) -> None:
        """Download and check ``root/folder``; raise RuntimeError or OSError if that fails."""
        raise ConfigurationError(f"{type(self).__name__} must define fetch(root)")

    def prepare_data(self) -> None:
        """Download the data if ``download`` is set and they are missing; decode images into the cache."""
        found = self.image_folder()
        if self.download and found is None and not self.own_folder().exists():
            download_whole(self.absolute_root(), self.folder, self.fetch, self.name)
        if self.cache is not None and (found is not None or self.decodes):
            self.setup("fit")

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Load the training or the test set: uint8 images (n, C, H, W) and int64 labels (n,)."""
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
        """Return ``root`` as an absolute path."""
        return Path(self.root).expanduser().absolute()

    def own_folder(self) -> Path:
        """Return the folder of the data set's own files, which need not exist."""
        return self.absolute_root() / self.folder

    def image_folder(self) -> tuple[Path, str] | None:
        """Return the image folder and the name of its test set; None if there is no image folder."""
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
