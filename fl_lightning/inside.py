"""Paths in a folder, of which no link leads out. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

from fl_lightning.errors import ConfigurationError


def within(folder: Path, *names: str) -> Path:
    """Return a path in a folder; nothing need exist there. The folder itself may be reached through a link.

    Raises:
        ConfigurationError: a link leads out of the folder.
    """
    path = folder.joinpath(*names)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ConfigurationError(
            f"{path} is reached by a link that leads out of {folder}: put what it leads to in its place, or remove it"
        )
    return path


def inside(folder: Path, *names: str) -> Path:
    """Return the path of a file in a folder; the file need not exist. The folder itself may be reached through a link.

    Raises:
        ConfigurationError: a link leads out of the folder, or something else than a file has the path.
    """
    path = within(folder, *names)
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"expected a file, but {path} is a folder, a FIFO or a device: remove it")
    return path
