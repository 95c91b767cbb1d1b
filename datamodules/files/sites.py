"""Find images by site: ``root/<site>/<class>/*``, or ``root/<site>/{train,test}/<class>/*``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fl_lightning.datamodules.files.folder import ImageFiles, class_names, find_images
from fl_lightning.errors import ConfigurationError
from fl_lightning.seeding import numpy_generator

TESTS = ("test", "val")


@dataclass(frozen=True)
class SiteFiles(ImageFiles):
    """The image files of all sites in one split.

    Attributes:
        sites: the site of each file.
    """

    sites: list[str]


def list_sites(root: Path, train: bool, test_share: float, seed: int, left_out: Sequence[str] = ()) -> SiteFiles:
    """List the training or the test images of all sites, site by site, each in the order of its classes and files.

    Args:
        root: folder that holds a folder for each site; all sites have the same class folders, which may be empty.
        train: whether to list the training images.
        test_share: share in (0, 1) of the images of a site without a test set that are its test set; drawn with
            ``seed``, at least one image.
        seed: the run's seed.
        left_out: sites of which all images, those of their training sets included, are test images.

    Raises:
        ConfigurationError: there are no sites, a site has no class folders or other ones than the others, or too few
            images.
    """
    files: list[str] = []
    labels: list[int] = []
    sites: list[str] = []
    for site in site_names(root):
        images: list[tuple[str, int]] = []
        if site not in left_out:
            images = _images_of(root / site, train, test_share, seed)
        elif not train:
            images = [image for part in (True, False) for image in _images_of(root / site, part, test_share, seed)]
        for path, label in images:
            files.append(path)
            labels.append(label)
            sites.append(site)
    return SiteFiles(root, "train" if train else "test", files, torch.tensor(labels), sites)


def site_names(root: Path) -> list[str]:
    """Return the sorted names of the sites; refuse sites whose classes differ."""
    names = class_names(root) if root.is_dir() else []
    if not names:
        raise ConfigurationError(f"expected a folder for each site in {root}, got none: point root there")
    first = classes_of(root / names[0])
    for name in names:
        classes = classes_of(root / name)
        if not classes:
            raise ConfigurationError(
                f"expected {root / name} to hold a folder for each class, or train and test with such folders, got "
                "none: put its images into folders of classes"
            )
        if classes != first:
            odd = sorted(set(classes) ^ set(first))[0]
            having, lacking = (name, names[0]) if odd in classes else (names[0], name)
            raise ConfigurationError(
                f"expected the same class folders in every site of {root}, got {odd!r} in {having} and not in "
                f"{lacking}: correct its name, or give {lacking} an empty folder of this name"
            )
    return names


def classes_of(site: Path) -> list[str]:
    """Return the sorted names of a site's classes."""
    return class_names(_split(site, train=True) or site)


def _split(site: Path, train: bool) -> Path | None:
    """Return the folder of a site's training or test set; None for a site that holds its classes itself."""
    tests = [site / name for name in TESTS if (site / name).is_dir()]
    if not tests or not (site / "train").is_dir():
        return None
    return site / "train" if train else tests[0]


def _images_of(site: Path, train: bool, test_share: float, seed: int) -> list[tuple[str, int]]:
    """List the training or the test images of a site, each with its class."""
    split = _split(site, train)
    folder = split or site
    images: list[tuple[str, int]] = []
    for label, files in enumerate(find_images([folder / name for name in classes_of(site)], may_be_empty=True)):
        images += [(path, label) for path in files]
    least = 1 if split else 2
    if len(images) < least:
        raise ConfigurationError(
            f"expected at least {least} images in {folder}, {'one' if split else 'to train and to test on'}, got "
            f"{len(images)}: add images, or take the folder away"
        )
    if split:
        return images
    count = min(max(1, round(test_share * len(images))), len(images) - 1)
    draw = numpy_generator(seed, f"test share of {site.name}")
    in_test = set(draw.choice(len(images), count, replace=False).tolist())
    return [image for row, image in enumerate(images) if (row not in in_test) == train]
