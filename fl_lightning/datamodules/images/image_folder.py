"""ImageFolder: your own images, one folder per class."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from typing_extensions import override

from fl_lightning.commands import some
from fl_lightning.datamodules.base.domains import check_left_out, left_out_names
from fl_lightning.datamodules.base.settings import Images, Unpack
from fl_lightning.datamodules.base.source import Source
from fl_lightning.datamodules.changes.constants import CONSTANTS, check_constants, measure
from fl_lightning.datamodules.files.cache import CACHE
from fl_lightning.datamodules.files.folder import (
    MODES,
    ImageFiles,
    commonest_size,
    found_splits,
    list_images,
    read_images,
)
from fl_lightning.datamodules.files.layout import TRAIN, choose_test, folder_names, look
from fl_lightning.datamodules.files.sites import Site, SiteFiles, find_sites, found_sites, list_sites
from fl_lightning.datamodules.images.image_data import ImageData
from fl_lightning.errors import ConfigurationError, check_choice, refusal
from fl_lightning.later import later


class ImageFolder(ImageData):
    """Your own images, in a folder for each class, or for each site and class.

    The images are ``root/{train,test}/<class>/*`` or ``root/{train,val}/<class>/*``, or deeper. With ``client`` or
    ``domain``, they are ``root/<site>/<class>/*`` or ``root/<site>/{train,test}/<class>/*``: each site is a client with
    its name, unless a partition is given, and its test images are what the client holds out. One line names the sites,
    splits and classes that were found; other names of splits (Train, validation) are refused, and so are splits beside
    sites or classes.

    Classes are counted on loading and numbered in sorted order; all folders of classes must have the same names, and
    those of a site may be empty. A folder that links reach twice is read once. Images are turned by their EXIF
    orientation, scaled until they cover ``image_size`` (bilinear, antialiased), and their middle is cut out. Where
    ``train_examples``, ``test_examples`` or ``long_tail`` leave images out, these are not decoded.

    Args:
        root: folder that holds ``train`` and the test set, ``test`` or, if there is no ``test``, ``val``; or the sites.
        image_size: height and width in pixels, or one number for both; null for the commonest size.
        channels: 3, where grey images become colour, or 1, where colour images become grey.
        mean: mean of each channel of inputs in [0, 1]; null to measure mean and standard deviation on the images on
            which clients train: on none of validation, of the proxy set, or that clients hold out.
        std: standard deviation of each channel, above 0; null if ``mean`` is null.
        cache: folder that keeps decoded images for the next run; null for none. In the default, ``$XDG_CACHE_HOME``, if
            set, takes the place of ``~/.cache``.
        client: "folder" if ``root`` holds a folder for each client (site, hospital, writer).
        domain: "folder" if ``root`` holds a folder for each domain (photo, sketch); they are the clients, too, unless a
            partition such as ``DomainDirichlet`` is given, and :meth:`domain_batches` gives the test images of each.
        leave_out: domains, or sites, that do not train: all their images are test images.
        test_share: share in (0, 1) of the images of a site without a test set that are its test set, at least one
            image; drawn with the run's seed.
        images: ``num_clients``, ``partition``, ``augment`` and the other arguments of :class:`ImageData`.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, the data are missing or invalid.
    """

    places = ("root", "cache")
    from_statistics = ("mean", "std")

    @later(client=None, domain=None, leave_out=(), test_share=0.2)
    def __init__(
        self,
        root: str,
        image_size: int | tuple[int, int] | None = None,
        channels: Literal[1, 3] = 3,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        cache: str | None = CACHE,
        client: Literal["folder"] | None = None,
        domain: Literal["folder"] | None = None,
        leave_out: Sequence[str] = (),
        test_share: float = 0.2,
        **images: Unpack[Images],
    ) -> None:
        super().__init__(**images)
        check_choice("channels", channels, *MODES)
        if not 0 < test_share < 1:
            raise ConfigurationError(f"test_share must be in (0, 1), the share of a site's images, got {test_share}")
        if client and domain:
            raise ConfigurationError("expected client or domain, got both: a folder of images is either")
        if client and images.get("partition") is not None:
            raise ConfigurationError(
                "expected client or partition, got both: leave one out; --data.domain folder in place of client lets a "
                "partition such as DomainDirichlet divide each folder"
            )
        self.mean, self.std = (0.0,) * channels, (1.0,) * channels  # until they are measured
        if leave_out and not (client or domain):
            raise ConfigurationError("leave_out names folders of domains: set domain (--data.domain folder), too")
        if mean is not None or std is not None:
            self.mean, self.std = check_constants(mean, std, channels)
        self.root = root
        self.image_size = image_size
        self.client, self.domain = client, domain
        self.leave_out = left_out_names(client or domain, leave_out)
        self.test_share = test_share
        self.channels = channels
        self._is_to_measure = mean is None
        if mean is None and self.normalize is True:
            self.measured = {CONSTANTS: "set mean and std"}
        self.cache = cache
        if image_size is not None:
            pair_of(image_size)

    @property
    def num_classes(self) -> int:  # type: ignore[override]  # read only: counted in the folders
        """C, the number of class folders of the training set."""
        return len(self.class_names)

    @cached_property
    def class_names(self) -> list[str]:
        """The names of the classes, in sorted order."""
        if self._by_site:
            return self._sites[0].classes
        self._test()
        return folder_names(self._root() / TRAIN)

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        size = self.image_size
        height, width = pair_of(commonest_size(self._files[True].files) if size is None else size)
        return self.channels, height, width

    @override
    def missing(self) -> str | None:
        if self._by_site:
            return refusal(lambda: find_sites(self._root()))
        return refusal(self._test)

    def prepare_data(self) -> None:
        """Decode the images into the cache, where other processes find them."""
        if self.cache is not None:
            self.setup("fit")

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Load the training or the test set: uint8 images (n, C, H, W) and int64 labels (n,)."""
        files = self._files[train]
        return self._read(files), files.labels

    @override
    def find_source(self, train: bool) -> Source:
        files = self._files[train]
        return self.unread(lambda rows: self._read(files.only(rows)), files.labels)

    @override
    def measure_inputs(self, inputs: Tensor, trained: Tensor) -> None:
        if self._is_to_measure:
            self.mean, self.std = measure(inputs, trained)

    @override
    def clients(self, train: bool) -> Sequence[str] | None:
        """Return the site of each image; None without sites."""
        files = self._files[train] if self._by_site else None
        return files.sites if isinstance(files, SiteFiles) else None

    @override
    def domains(self, train: bool) -> Sequence[str] | None:
        """Return the domain of each image, or its site if some are left out; None if neither is asked for."""
        return self.clients(train) if self.domain or self.leave_out else None

    def _read(self, files: ImageFiles) -> Tensor:
        images, _ = read_images(files, self.shape, self.cache, resize=True)
        return images

    @cached_property
    def _files(self) -> Mapping[bool, ImageFiles]:
        """The images of the training (True) and the test set (False), listed once in the life of this data module."""
        root = self._root()
        files: dict[bool, ImageFiles] = {}
        if self._by_site:
            names = [site.name for site in self._sites]
            left_out = _as_written(self.leave_out, names)
            check_left_out(left_out, names)
            for train in (True, False):
                files[train] = list_sites(root, self._sites, train, self.test_share, self.seed, left_out)
            rank_zero_info(found_sites(root, self._sites, self.test_share))
        else:
            test = self._test()
            files = {True: list_images(root, TRAIN, test), False: list_images(root, test, test)}
            rank_zero_info(found_splits(root, test))
        return files

    @cached_property
    def _sites(self) -> Sequence[Site]:
        return find_sites(self._root())

    @property
    def _by_site(self) -> bool:
        return bool(self.client or self.domain)

    def _root(self) -> Path:
        return Path(self.root).expanduser().absolute()

    def _test(self) -> str:
        """Return the name of the test set's folder; refuse a root that does not hold train and a test set."""
        root = self._root()
        names = folder_names(root) if root.is_dir() else []
        test = choose_test(root, names)
        if test is not None:
            return test
        remedy = "point root to such a folder (--data.root DIR)"
        if names and refusal(lambda: find_sites(root)) is None:
            remedy += ", or say --data.client folder if these are sites, <site>/<class>/*"
        raise ConfigurationError(
            f"expected an image folder {{train,test}}/<class>/* or {{train,val}}/<class>/* in {root}, got "
            f"{some(names) or 'none'}: {remedy}"
        )


def _as_written(left_out: Sequence[str], sites: Sequence[str]) -> list[str]:
    """Return the names of sites as their folders are written, where names that were typed look the same."""
    written = {look(site): site for site in sites}
    return [written.get(look(name), name) for name in left_out]


def pair_of(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width; refuse what is neither one number of pixels nor two."""
    sizes = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sizes) != 2 or min(sizes) < 1:
        raise ConfigurationError(f"expected image_size to be pixels >= 1, or height and width, got {image_size}")
    height, width = sizes
    return height, width
