"""Run folders, as a report reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from fl_lightning.errors import ConfigurationError

MEND = "leave this run out, or train it again"


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder; what it lacks is empty.

    Attributes:
        folder: it.
        config: ``config.yaml``.
        metrics: ``metrics.csv``, by round.
        timings: ``timings.csv``, by round.
        environment: ``environment.yaml``.
    """

    folder: Path
    config: Mapping[str, Any]
    metrics: pd.DataFrame
    timings: pd.DataFrame
    environment: Mapping[str, Any]

    @property
    def seed(self) -> Any:
        """Of everything; None for a run without config."""
        return self.config.get("seed_everything")

    @property
    def names(self) -> list[str]:
        """Of the columns of metrics.csv."""
        return [str(name) for name in self.metrics]

    def items(self, prefix: str) -> pd.DataFrame:
        """The columns ``prefix/<n>`` of metrics.csv, ascending, named n; rounds without any value are left out."""
        found = {int(name.removeprefix(f"{prefix}/")): name for name in self.names if is_item(name, prefix)}
        columns = {number: self.metrics[found[number]] for number in sorted(found)}
        return pd.DataFrame(columns, index=self.metrics.index).dropna(how="all")

    def arrays(self, name: str) -> dict[int, Path]:
        """The files ``arrays/<name>_<round>.npz``, by round."""
        found = {path.stem.rpartition("_")[2]: path for path in (self.folder / "arrays").glob(f"{name}_*.npz")}
        return {round: found[str(round)] for round in sorted(int(each) for each in found if each.isdigit())}


def is_item(name: str, prefix: str = ".*") -> bool:
    """Whether a column is ``prefix/<n>``, one value of many: a client's, a class'."""
    return re.fullmatch(rf"(?:{prefix})/\d+", name) is not None


def load(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """Arrays of an ``.npz`` file.

    Args:
        path: of the file.
        names: those that it must have; all that it has are returned.

    Raises:
        ConfigurationError: it cannot be read, or one is not there.
    """
    try:
        with np.load(path) as file:
            found = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive raises whatever its bytes lead to
        raise ConfigurationError(f"{path} is damaged ({type(error).__name__}): delete it, or {MEND}") from None
    if missing := [name for name in names if name not in found]:
        raise ConfigurationError(
            f"{path} must hold {', '.join(names)}, and lacks {', '.join(missing)}: delete it, or {MEND}"
        )
    return found


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """Read run folders, and the run folders within other folders, each once.

    Raises:
        ConfigurationError: a folder is missing or holds no run, or a file of a run is damaged.
    """
    folders = [folder for path in paths for folder in _find(path)]
    return [_read(folder) for folder in {folder.resolve(): folder for folder in folders}.values()]


def _find(path: Path) -> list[Path]:
    if (path / "metrics.csv").is_file():
        return [path]
    found = [file.parent for file in path.rglob("metrics.csv")]
    if not found:
        came = "does not exist" if not path.exists() else "is no folder" if not path.is_dir() else "holds none"
        raise ConfigurationError(
            f"report: expected a run folder with a metrics.csv, or a folder of such, but {path} {came}: "
            "give one that fit has made, runs/<experiment>/<version>"
        )
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[tuple[str, int]]:
    """version_10 comes after version_9."""
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D+)(\d*)", str(path))]


def _read(folder: Path) -> Run:
    timings = folder / "timings.csv"
    return Run(
        folder=folder,
        config=_mapping(folder / "config.yaml"),
        metrics=_table(folder / "metrics.csv"),
        # A process that was killed may leave a torn line.
        timings=_table(timings).dropna() if timings.is_file() else pd.DataFrame(),
        environment=_mapping(folder / "environment.yaml"),
    )


def _mapping(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        content = None
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} is damaged: expected YAML with names and values; {MEND}")
    return content


def _table(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except ValueError:  # pandas' own errors are, too
        table = pd.DataFrame()
    numbers = all(pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes)
    rounds = table.get("round", pd.Series(dtype=int))
    if not numbers or not len(rounds) or not rounds.is_unique or not pd.api.types.is_integer_dtype(rounds):
        raise ConfigurationError(
            f"{path} is empty or damaged: expected a column round and numbers, a row a round; {MEND}"
        )
    return table.set_index("round").astype(float).sort_index()
