"""Downloads that appear complete or not at all."""

import shutil
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from fl_lightning.errors import ConfigurationError

ABANDONED = 24 * 3600.0  # seconds after which nobody is still downloading


def download_whole(root: Path, folder: str, fetch: Callable[[Path], object], name: str) -> None:
    """Download ``root/folder`` by way of a temporary folder, so that an interrupted download is never taken for data.

    Args:
        root: folder of the data, created if it does not exist.
        folder: part of the download to keep, as a path below the temporary folder and then below ``root``.
        fetch: function that downloads into a given folder, unpacks and checks.
        name: name of the data set.

    Raises:
        ConfigurationError: the data set could not be downloaded, or not be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        for old in root.glob(f".{name}-*"):
            if time.time() - old.stat().st_mtime > ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as unfinished:
            fetch(Path(unfinished))
            (root / folder).parent.mkdir(parents=True, exist_ok=True)
            _move(Path(unfinished, folder), root / folder)
    except (RuntimeError, OSError, HTTPException) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(
            f"expected to download {name} to {root}, got {reason!r}: "
            "check the network and that the folder can be written, or put the files there yourself"
        ) from None


def _move(new: Path, place: Path) -> None:
    try:
        new.rename(place)
    except OSError:
        if not any(place.iterdir()):  # otherwise another process was faster, and its files are complete as well
            raise
