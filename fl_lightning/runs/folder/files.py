"""The files of a run folder: their names, where run folders are, what timings hold. Imports neither torch nor pandas.

Every path in a run folder is made by :func:`inside`, so that no link leads a reader or a writer out of the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.inside import inside
from fl_lightning.runs.folder.yaml_text import read_yaml

METRICS = "metrics.csv"  # every run folder has one
BETTER = "better.yaml"  # which values of its metrics are better; earlier versions wrote none
TIMINGS = "timings.csv"
CONFIG, ENVIRONMENT = "config.yaml", "environment.yaml"
SITES = "sites.json"  # what the sites of a federation have told of their data
CHECKPOINTS, ARRAYS = "checkpoints", "arrays"
NOT_RECORDED = "not_recorded"  # the entry of config.yaml by which the record of a run from Python is known
MEND = "restore the file from a copy, or leave this run out"  # ends the message about a damaged file


def array_file(folder: Path, name: str) -> Path:
    """Return the path of the file ``arrays/<name>.npz``; the name for one round ends with the round's number."""
    return inside(folder, ARRAYS, f"{name}.npz")


def read_mapping(folder: Path, name: str) -> Mapping[str, Any]:
    """Read a YAML file of a run folder; empty if there is no such file.

    Raises:
        ConfigurationError: the file is damaged, or is none of the folder's (:func:`inside`).
    """
    path = inside(folder, name)
    if not path.is_file():
        return {}
    try:
        content = read_yaml(path, path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        content = None
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; {MEND}") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} is damaged: expected YAML with names and values; {MEND}")
    return content


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
    folders = [file.parent for file in path.rglob(METRICS)]
    if not folders:
        raise _without_runs(path, "holds no run folder")
    return folders


def is_config_of_run(path: Path) -> bool:
    """Tell whether a file is the ``config.yaml`` of a run folder."""
    return path.name == CONFIG and inside(path.parent, METRICS).is_file()


def _without_runs(path: Path, came: str) -> ConfigurationError:
    return ConfigurationError(
        f"give a folder that fit has made, runs/<experiment>/<version>, or a folder of such folders: {path} {came}"
    )


@dataclass(frozen=True)
class RoundTime:
    """Time and memory of one round.

    Attributes:
        round: number of the round: 1, 2, …
        seconds: wall time since the previous round ended: the parts below, evaluation, logging and checkpoints.
        local: seconds of local training; with several devices, until the last device has sent its updates.
        server: seconds from then on until the new global model is ready: aggregation, server step, refinement.
        monitors: seconds that monitors took, which count in no other part; only their hook ``loss``, called in every
            local step, counts as ``local``.
        memory_mib: resident memory of this process at the end of the round, in MiB.
        gpu_mib: peak memory of tensors on this process's GPU so far, in MiB; 0 without a GPU.
        waiting: seconds of ``local`` in which devices waited for others, the mean over the devices.
    """

    round: int
    seconds: float
    local: float
    server: float
    monitors: float
    memory_mib: float
    gpu_mib: float
    waiting: float = 0.0  # not in the files of earlier versions

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part: ``local``, ``server``, ``monitors`` and the ``rest``."""
        known = {"local": self.local, "server": self.server, "monitors": self.monitors}
        return known | {"rest": max(self.seconds - sum(known.values()), 0.0)}
