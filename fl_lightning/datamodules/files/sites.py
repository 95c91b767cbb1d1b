"""Find images by site: ``root/<site>/<class>/*``, or ``root/<site>/{train,test}/<class>/*``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fl_lightning.commands import some
from fl_lightning.datamodules.files.folder import ImageFiles, find_images, warn_of_loose
from fl_lightning.datamodules.files.layout import (
    TRAIN,
    check_apart,
    choose_test,
    folder_names,
    split_names,
    with_twin,
)
from fl_lightning.errors import ConfigurationError
from fl_lightning.seeding import numpy_generator


@dataclass(frozen=True)
class Site:
    """The folder of a site.

    Attributes:
        folder: the folder, which has the site's name.
        test: name of the folder of the site's test set; None for a site that holds its classes itself.
        classes: sorted names of the folders of classes.
        unread: names of the folders beside the training and the test set, which are not read.
    """

    folder: Path
    test: str | None
    classes: list[str]
    unread: list[str]

    @property
    def name(self) -> str:
        """The site's name."""
        return self.folder.name

    def split(self, train: bool) -> Path:
        """Return the folder that holds the classes of the training or of the test set."""
        if self.test is None:
            return self.folder
        return self.folder / (TRAIN if train else self.test)


@dataclass(frozen=True)
class SiteFiles(ImageFiles):
    """The image files of all sites in one split.

    Attributes:
        sites: the site of each file.
    """

    sites: list[str]


def find_sites(root: Path) -> list[Site]:
    """Find the sites in a folder, sorted by name.

    Args:
        root: folder that holds a folder for each site; all sites have the same class folders, which may be empty.

    Raises:
        ConfigurationError: there are no sites, there are splits beside sites or classes, two names look the same or are
            those of one folder, or a site has no class folders or other ones than the others.
    """
    names = folder_names(root) if root.is_dir() else []
    if not names:
        raise ConfigurationError(f"expected a folder for each site in {root}, got none: point root there")
    if splits := split_names(names):
        raise ConfigurationError(
            f"expected a folder for each site in {root}, got {some(splits)}, which name splits: leave client and "
            "domain out for {train,test}/<class>, write the splits of sites as <site>/{train,test}/<class>, or give a "
            "site another name"
        )
    check_apart([root / name for name in names])
    sites = [read_site(root / name) for name in names]
    first = sites[0]
    for site in sites:
        if odd := sorted(set(site.classes) ^ set(first.classes)):
            having, lacking = (site.name, first.name) if odd[0] in site.classes else (first.name, site.name)
            raise ConfigurationError(
                f"expected the same class folders in every site of {root}, got {with_twin(odd[0], odd)} in {having} "
                f"and not in {lacking}: correct its name, or give {lacking} an empty folder of this name"
            )
    return sites


def read_site(folder: Path) -> Site:
    """Read which splits and classes the folder of a site holds; see :func:`find_sites`."""
    names = folder_names(folder)
    test = choose_test(folder, names)
    tested: list[str] = []
    classes = names
    unread: list[str] = []
    if test is not None:
        splits = split_names(names)
        if others := [name for name in names if name not in splits]:
            raise ConfigurationError(
                f"expected splits alone or classes alone in {folder}, got {TRAIN}, {test} and {some(others)}: move the "
                "images of a class into train/<class> and test/<class>"
            )
        classes = folder_names(folder / TRAIN)
        tested = folder_names(folder / test)
        unread = [name for name in names if name not in (TRAIN, test)]
    if not classes:
        raise ConfigurationError(
            f"expected {folder} to hold a folder for each class, or train and test with such folders, got none: put "
            "its images into folders of classes"
        )
    site = Site(folder, test, classes, unread)
    if unknown := [name for name in tested if name not in classes]:
        raise ConfigurationError(
            f"expected the classes of {site.split(False)} in {site.split(True)}, too, got no "
            f"{with_twin(unknown[0], classes)}: correct its name, or give {TRAIN} an empty folder of this name"
        )
    check_apart([*(site.split(True) / name for name in classes), *(site.split(False) / name for name in tested)])
    return site


def found_sites(root: Path, sites: Sequence[Site], test_share: float) -> str:
    """Describe folders of sites in one line: the sites, the splits of each, the classes, and what is not read.

    Args:
        root: folder that holds the sites.
        sites: the sites.
        test_share: share of the images of a site without a test set that are its test set.
    """
    by_test: dict[str | None, list[str]] = {}
    unread: list[str] = []
    for site in sites:
        by_test.setdefault(site.test, []).append(site.name)
        unread += [f"{site.name}/{name}" for name in site.unread]
    kinds = []
    for test, names in by_test.items():
        kind = f"test_share {test_share:g}" if test is None else f"splits {TRAIN} and {test}"
        kinds.append(f"{kind} in {some(names)}" if len(by_test) > 1 else f"{kind} in each")
    classes = sites[0].classes
    found = some([site.name for site in sites])
    words = [f"sites {found} ({len(sites)})", *kinds, f"classes {some(classes)} ({len(classes)})"]
    if unread:
        words.append(f"not read: {some(unread)}")
    return f"{root}: {'; '.join(words)}"


def list_sites(
    root: Path, found: Sequence[Site], train: bool, test_share: float, seed: int, left_out: Sequence[str] = ()
) -> SiteFiles:
    """List the training or the test images of all sites, site by site, each in the order of its classes and files.

    Args:
        root: folder that holds the sites.
        found: the sites.
        train: whether to list the training images.
        test_share: share in (0, 1) of the images of a site without a test set that are its test set; drawn with
            ``seed``, at least one image.
        seed: the run's seed.
        left_out: sites of which all images, those of their training sets included, are test images.

    Raises:
        ConfigurationError: a site has too few images, or links lead from two classes to the same images.
    """
    files: list[str] = []
    labels: list[int] = []
    sites: list[str] = []
    warn_of_loose([site.split(train) for site in found if train or site.test])
    for site in found:
        images: list[tuple[str, int]] = []
        if site.name not in left_out:
            images = _images_of(site, train, test_share, seed)
        elif not train:
            images = [image for part in (True, False) for image in _images_of(site, part, test_share, seed)]
        for path, label in images:
            files.append(path)
            labels.append(label)
            sites.append(site.name)
    return SiteFiles(root, "train" if train else "test", files, torch.tensor(labels), sites)


def _images_of(site: Site, train: bool, test_share: float, seed: int) -> list[tuple[str, int]]:
    """List the training or the test images of a site, each with its class."""
    folder = site.split(train)
    images: list[tuple[str, int]] = []
    for label, files in enumerate(find_images([folder / name for name in site.classes], may_be_empty=True)):
        images += [(path, label) for path in files]
    least = 2 if site.test is None else 1
    if len(images) < least:
        purpose = "to train and to test on" if site.test is None else "one"
        raise ConfigurationError(
            f"expected at least {least} images in {folder}, {purpose}, got {len(images)}: add images, or take the "
            "folder away"
        )
    if site.test is not None:
        return images
    count = min(max(1, round(test_share * len(images))), len(images) - 1)
    draw = numpy_generator(seed, f"test share of {site.name}")
    in_test = set(draw.choice(len(images), count, replace=False).tolist())
    return [image for row, image in enumerate(images) if (row not in in_test) == train]
