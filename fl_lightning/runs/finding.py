"""Find run folders, without importing torch or pandas."""

from __future__ import annotations

from pathlib import Path

from fl_lightning.errors import ConfigurationError
from fl_lightning.inside import inside
from fl_lightning.runs.files import METRICS


def check_folder(path: Path) -> None:
    """Refuse a path that is not a folder."""
    if not path.is_dir():
        raise _without_runs(path, "is not a folder" if path.exists() else "does not exist")


def folders_in(path: Path) -> list[Path]:
    """Find the run folders within a folder, or that folder itself if it is one.

    Raises:
        ConfigurationError: the folder holds no run folder.
    """
    check_folder(path)
    if inside(path, METRICS).is_file():
        return [path]
    if not (found := [file.parent for file in path.rglob(METRICS)]):
        raise _without_runs(path, "holds no run folder")
    return found


def _without_runs(path: Path, came: str) -> ConfigurationError:
    return ConfigurationError(
        f"give a folder that fit has made, runs/<experiment>/<version>, or a folder of such folders: {path} {came}"
    )
