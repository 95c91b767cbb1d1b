"""Which folders of images are splits, sites or classes: as their documented names say, or refused in one line."""

import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.commands import some
from fl_lightning.errors import ConfigurationError

TRAIN, TESTS = "train", ("test", "val")  # names of the split folders that are read; of two test sets, the first
SPLIT = re.compile("(train(ing)?|test(ing)?|val(id(ation)?)?|dev|eval(uation)?)([ _-]?(set|data|split))?")


def folder_names(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones and links that lead back.

    A link leads back if it leads to the folder itself or to one above: a folder is no part of itself.
    """
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            is_inside = path.is_dir() and not leads_back(path, folder) if entry.is_symlink() else entry.is_dir()
            if is_inside:
                names.append(entry.name)
    return sorted(names)


def leads_back(path: Path, folder: Path) -> bool:
    """Tell whether a path is a link to a folder or to one above it."""
    return path.is_symlink() and folder.resolve().is_relative_to(path.resolve())


def resolved(folders: Sequence[Path]) -> list[Path]:
    """Resolve the links in the paths of many folders, and those above the folders once."""
    above: dict[Path, Path] = {}
    found: list[Path] = []
    for folder in folders:
        if folder.is_symlink():
            found.append(folder.resolve())
            continue
        if folder.parent not in above:
            above[folder.parent] = folder.parent.resolve()
        found.append(above[folder.parent] / folder.name)
    return found


def check_apart(folders: Sequence[Path]) -> None:
    """Refuse folders whose names look the same beside each other, or that a link makes one and the same folder."""
    shown: dict[tuple[Path, str], str] = {}
    places: dict[Path, Path] = {}
    for folder, real in zip(folders, resolved(folders), strict=True):
        twin = shown.setdefault((folder.parent, look(folder.name)), folder.name)
        if twin != folder.name:
            raise ConfigurationError(
                f"expected folders whose names look different in {folder.parent}, got {twin!a} and {folder.name!a}, "
                f"which both look like {look(twin)}: rename one, or join the two"
            )
        if (other := places.setdefault(real, folder)) != folder:
            raise ConfigurationError(
                f"expected different folders, got {other} and {folder}, which a link makes the same: take the link away"
            )


def look(name: str) -> str:
    """Return what a name looks like: accents as parts of their letters (Unicode's NFC), no spaces around it."""
    return unicodedata.normalize("NFC", name).strip()


def with_twin(name: str, names: Sequence[str]) -> str:
    """Write a name, and another one of some names if it looks the same."""
    twins = [other for other in names if other != name and look(other) == look(name)]
    return f"{name!a} (which looks the same as {twins[0]!a})" if twins else repr(name)


def split_names(names: Sequence[str]) -> list[str]:
    """Return those of some names that splits usually have, in any spelling: train, Test, validation, dev_set."""
    return [name for name in names if SPLIT.fullmatch(look(name).casefold())]


def choose_test(folder: Path, names: Sequence[str]) -> str | None:
    """Choose the test set among the folders in a folder: ``test`` or, without it, ``val``, beside ``train``.

    Args:
        folder: the folder.
        names: names of the folders in it.

    Returns:
        The name of the test set; None if no folder has the name of a split.

    Raises:
        ConfigurationError: folders have names of splits, but these are not ``train`` and ``test``, or ``train`` and
            ``val`` without a test set of another spelling.
    """
    splits = split_names(names)
    if not splits:
        return None
    chosen = next((test for test in TESTS if test in splits), None)
    misspelt = [name for name in splits if name != "test" and look(name).casefold().startswith("test")]
    if TRAIN in splits and (chosen == "test" or (chosen and not misspelt)):
        check_apart([folder / TRAIN, folder / chosen])
        return chosen
    others = [name for name in names if name not in splits]
    beside = f" beside {some(others)}" if others else ""
    raise ConfigurationError(
        f"expected folders named train and test, or train and val, in {folder}, got {some(splits)}{beside}: rename "
        "them (Train to train, validation to val), or add the one that is missing; a class or a site needs another name"
    )
