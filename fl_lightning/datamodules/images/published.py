"""PublishedImages: the base class of published data sets with files of their own."""

import os
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.settings import Images, Unpack
from fl_lightning.datamodules.base.source import Source
from fl_lightning.datamodules.files.cache import CACHE, cache_folder
from fl_lightning.datamodules.files.download import download_whole
from fl_lightning.datamodules.files.folder import (
    ImageFiles,
    find_image_folder,
    found_splits,
    list_images,
    read_images,
)
from fl_lightning.datamodules.images.image_data import ImageData
from fl_lightning.errors import ConfigurationError

VARIABLE = "FL_LIGHTNING_DATA"  # names the data folder
UNREADABLE = (RuntimeError, ValueError, KeyError, IndexError, TypeError, AssertionError, EOFError, OSError)
ELSEWHERE = f"name the folder that holds them (--data.root DIR, or the variable {VARIABLE})"


class PublishedImages(ImageData):
    """A published data set, in its own files or as an image folder. A subclass defines :meth:`read` and :meth:`fetch`.

    An image folder ``{train,test}/<class>/*`` in ``root/<name>`` or in ``root`` takes precedence over the
    data set's own files; its classes are numbered in sorted order. Damaged files raise an error that names them;
    they are never repaired or deleted. A number of images other than published gives a warning.

    Args:
        root: folder of the data. By default, ``data`` in the working directory if that folder holds the data set, else
            the data folder, to which downloads go: ``~/.cache/fl_lightning/data``. ``$FL_LIGHTNING_DATA`` names another
            data folder, which comes before ``data`` in the working directory.
        download: whether to download the data set if it is missing.
        cache: folder that keeps decoded images for the next run; null for none. In the default, ``$XDG_CACHE_HOME``, if
            set, takes the place of ``~/.cache``, as in the default of ``root``.
        images: ``num_clients``, ``partition``, ``augment`` and the other arguments of :class:`ImageData`.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, the data are missing or invalid, or cannot be
            downloaded.
    """

    name: str
    folder: str  # folder of the data set's own files, below root
    image_size: tuple[int, int]  # height, width
    published: tuple[int, int]  # numbers of training and test images
    places = ("root", "cache")
    decodes = False  # whether the data set's own files are images to be decoded

    def __init__(
        self, root: str | None = None, download: bool = True, cache: str | None = CACHE, **images: Unpack[Images]
    ) -> None:
        super().__init__(**images)
        self.root = root
        self.download = download
        self.cache = cache

    def files(self) -> list[str]:
        """Return the names of the data set's own files, without which it is incomplete; none by default."""
        return []

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read training or test set from the data set's own files, as :meth:`load`; may raise one of ``UNREADABLE``."""
        raise ConfigurationError(f"{type(self).__name__} must define read(train)")

    def fetch(self, root: Path) -> None:
        """Download and check ``root/folder``; raise RuntimeError or OSError if that fails."""
        raise ConfigurationError(f"{type(self).__name__} must define fetch(root)")

    @override
    def missing(self) -> str | None:
        if self.image_folder() is not None:
            return None
        folder = self.own_folder()
        if _is_filled(folder):
            complete = all((folder / file).exists() for file in self.files())
            return None if complete else self._message_of_damage()
        remedy = (
            "a run (from Python: prepare_data) downloads the data"
            if self.downloads()
            else f"set download: true (--data.download true), put the files there, or {ELSEWHERE}"
        )
        return f"expected {self.name} in {self._places()}, got neither: {remedy}"

    @override
    def downloads(self) -> bool:
        return self.download and not _is_filled(self.own_folder())  # damaged files are not replaced

    def prepare_data(self) -> None:
        """Download the data if ``download`` is set and they are missing; decode images into the cache."""
        if (message := self.missing()) is not None:
            if not self.downloads():
                raise ConfigurationError(message)
            by_hand = f"put the files into {self._places()}, or {ELSEWHERE}"
            download_whole(self.absolute_root(), self.folder, self.fetch, self.name, by_hand)
        if self.cache is not None and (self.image_folder() is not None or self.decodes):
            self.setup("fit")

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Load the training or the test set: uint8 images (n, C, H, W) and int64 labels (n,)."""
        image_folder = self.image_folder()
        if image_folder is not None:
            files = self._files(train, *image_folder)
            return self._read(files), files.labels
        images, labels = self._read_own(train)
        self._count(len(images), train, self.own_folder())
        return images, labels

    @override
    def find_source(self, train: bool) -> Source | None:
        image_folder = self.image_folder()
        if image_folder is None:
            return super().find_source(train)
        files = self._files(train, *image_folder)
        return self.unread(lambda rows: self._read(files.only(rows)), files.labels)

    def _files(self, train: bool, folder: Path, test: str) -> ImageFiles:
        files = list_images(folder, "train" if train else test, test, self.num_classes)
        self._count(len(files.files), train, folder)
        if train:
            rank_zero_info(found_splits(folder, test))
        return files

    def _read(self, files: ImageFiles) -> Tensor:
        images, _ = read_images(files, (len(self.mean), *self.image_size), self.cache)
        return images

    def _count(self, images: int, train: bool, folder: Path) -> None:
        """Warn of a number of images that is not the published one."""
        if images != (expected := self.published[not train]):
            rank_zero_warn(
                f"{self.name}: {images:,} of {expected:,} {'training' if train else 'test'} images are in "
                f"{folder}: the data may be half unpacked"
            )

    def absolute_root(self) -> Path:
        """Return ``root`` as an absolute path; by default, the folder that holds the data set or is to hold it."""
        if self.root is not None:
            return Path(self.root).expanduser().absolute()
        holding = (root for root in data_folders() if _is_filled(self._own_in(root)) or self._images_in(root))
        return next(holding, data_folder())

    def own_folder(self) -> Path:
        """Return the folder of the data set's own files, which need not exist."""
        return self._own_in(self.absolute_root())

    def image_folder(self) -> tuple[Path, str] | None:
        """Return the image folder and the name of its test set; None if there is no image folder."""
        return self._images_in(self.absolute_root())

    def _own_in(self, root: Path) -> Path:
        return root / self.folder

    def _images_in(self, root: Path) -> tuple[Path, str] | None:
        return find_image_folder(root, [self.name])

    def _places(self) -> str:
        """Describe both layouts in which the data set is found."""
        own, root = f"{self.own_folder()}{_listed(self.files())}", self.absolute_root()
        return f"{own} or as an image folder {{train,test}}/<class>/* in {root / self.name} or {root}"

    def _message_of_damage(self) -> str:
        folder = self.own_folder()
        return (
            f"expected {self.name} in {folder}, got damaged or incomplete files: delete {folder} and fetch them again "
            "(--data.download true)"
        )

    def _read_own(self, train: bool) -> tuple[Tensor, Tensor]:
        try:
            return self.read(train)
        except UNREADABLE:
            raise ConfigurationError(self.missing() or self._message_of_damage()) from None


def _is_filled(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _listed(files: Sequence[str]) -> str:
    return f" ({', '.join(files)})" if files else ""


def data_folder() -> Path:
    """Return the folder that downloads go to: ``$FL_LIGHTNING_DATA``, else ``data`` beside the cached images.

    Downloads can be made again, like the cached images, so both lie in the user's cache, as PyTorch's and Hugging
    Face's downloads do.
    """
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser().absolute() if named else cache_folder(CACHE) / "data"


def data_folders() -> list[Path]:
    """Return the folders to look in, in this order: ``data`` in the working directory, and the data folder.

    If ``$FL_LIGHTNING_DATA`` is set, the data folder that the variable names comes first.
    """
    local = Path("data").absolute()
    return [data_folder(), local] if os.environ.get(VARIABLE) else [local, data_folder()]
