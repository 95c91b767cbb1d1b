"""The run folder ``runs/<experiment>/<version>/``: names its files, takes a free version, writes metrics.csv."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from fl_lightning.errors import ConfigurationError
from fl_lightning.runs.catalogue import FIRST_COLUMNS

CONFIG, ENVIRONMENT = "config.yaml", "environment.yaml"
METRICS, TIMINGS = "metrics.csv", "timings.csv"
CHECKPOINTS, ARRAYS = "checkpoints", "arrays"
MEND = "leave this run out, or train it again"  # ends the message about a damaged file


def run_folder(trainer: Trainer) -> Path:
    """Return the folder of the Trainer's run. All devices must call this, or the calling ones wait for the others."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def array_file(folder: Path, name: str) -> Path:
    """Path of the file ``arrays/<name>.npz``; the name for one round ends with the round's number."""
    return folder / ARRAYS / f"{name}.npz"


def read_mapping(path: Path) -> Mapping[str, Any]:
    """Read a YAML file of a run folder; empty if there is no such file.

    Raises:
        ConfigurationError: the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        content = None
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} is damaged: expected YAML with names and values; {MEND}")
    return content


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all: yield a temporary path to write to, then move the written file to ``path``.

    Missing folders are created. If the body raises, the file at ``path`` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    yield part
    part.replace(path)


class RunFolder(CSVLogger):
    """Writes ``metrics.csv``, one row per round, and chooses the run folder.

    Args:
        root: the folder of all runs.
        experiment: the name of the experiment.
        version: name of an existing version to continue; None for the next free ``version_N``.
        rounds: number of rounds of the existing version to keep, after which the run continues; None for all.

    Raises:
        ConfigurationError: the experiment's folder would not lie below the root.
    """

    def __init__(
        self,
        root: str | Path = "runs",
        experiment: str = "experiment",
        version: str | None = None,
        rounds: int | None = None,
    ) -> None:
        check_experiment(experiment)
        super().__init__(root, experiment, version)
        self.rounds = rounds
        self._taken = version
        self._rows: dict[int, dict[str, float]] | None = None
        self._lines: dict[int, str] = {}  # the rows as lines of the file, without the rows that have changed
        self._names: set[str] = set()

    @property
    def is_taken(self) -> bool:
        """Whether this process has a version; after a fit in forked processes, it has none."""
        return self._taken is not None

    @property
    @override
    def version(self) -> str:
        """Name of the run folder in the experiment's folder; taken on first access, so that no two runs share one."""
        if self._taken is None:
            self._taken = next_version(Path(self.root_dir), take=_is_first_process())
        return self._taken

    @property
    @override
    def experiment(self) -> Any:
        """The logger itself, in place of Lightning's writer, which would delete an earlier ``metrics.csv``."""
        return self

    @override
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: config.yaml holds the hyper-parameters."""

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Add metrics to the row of a round: the round that they name by ``round``, or else ``step``.

        Metrics with neither are added to the last row.
        """
        if self._rows is None:
            self._rows = self._read()
        values = {name: float(value) for name, value in metrics.items()}
        last = max(self._rows, default=1)
        round = int(values.pop("round", last if step is None else step))
        if round > 0:
            self._rows.setdefault(round, {}).update(values)
            self._lines.pop(round, None)
            self.save()

    @rank_zero_only
    def drop_after(self, round: int) -> None:
        """Drop the rows after a round, which belong to a round that was stopped half-way."""
        if self._rows and max(self._rows) > round:
            self._rows = {number: row for number, row in self._rows.items() if number <= round}
            self._lines.clear()
            self.save()

    def _read(self) -> dict[int, dict[str, float]]:
        file = Path(self.log_dir) / METRICS
        if not file.exists():
            return {}
        with file.open(newline="") as lines:
            rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(lines)]
        return {int(row.pop("round")): row for row in rows if self.rounds is None or row["round"] <= self.rounds}

    @override
    @rank_zero_only
    def save(self) -> None:
        """Rewrite ``metrics.csv``, whole or not at all; without rows there is no file."""
        if not self._rows:
            if self._rows is not None:
                (Path(self.log_dir) / METRICS).unlink(missing_ok=True)
            return
        columns = self._columns(self._rows)
        for round, row in self._rows.items():
            if round not in self._lines:
                values = [f"{row[name]:.7g}" if name in row else "" for name in columns]
                self._lines[round] = ",".join([str(round), *values]) + "\r\n"
        with whole(Path(self.log_dir) / METRICS) as part, part.open("w", newline="") as file:
            csv.writer(file).writerow(["round", *columns])
            file.writelines(self._lines[round] for round in sorted(self._rows))

    def _columns(self, rows: Mapping[int, Mapping[str, float]]) -> list[str]:
        """Collect the names of the columns in their order; clear all lines if there is a new name."""
        changed = (row for round, row in rows.items() if round not in self._lines)
        if new := {name for row in changed for name in row} - {"epoch"} - self._names:
            self._names |= new
            self._lines.clear()
        first = [name for name in FIRST_COLUMNS if name in self._names]
        return [*first, *sorted(self._names.difference(first))]


def _is_first_process() -> bool:
    return int(getattr(rank_zero_only, "rank", 0)) == 0


def check_experiment(name: str) -> None:
    """Refuse a name of an experiment whose folder would not lie below the folder of all runs."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ConfigurationError(
            f"experiment must name a folder below trainer.default_root_dir, got {name}: "
            "give the name alone, and another place by --trainer.default_root_dir"
        )


def next_version(experiment: Path, take: bool = True) -> str:
    """Find the first free ``version_N`` of an experiment, and create its folder, so that no other process takes it.

    Args:
        experiment: the experiment's folder.
        take: whether to create the folder; otherwise only the name is returned.
    """
    number = 0
    while True:
        folder = experiment / f"version_{number}"
        if not folder.exists():
            if not take:
                return folder.name
            try:
                folder.mkdir(parents=True)
                return folder.name
            except FileExistsError:
                pass
        number += 1


def rounds_in(folder: Path) -> int:
    """Count the rounds in a run folder's ``metrics.csv`` by its lines: cheap enough to call often."""
    try:
        return max(len((folder / METRICS).read_text().splitlines()) - 1, 0)
    except OSError:
        return 0


def newest_in(folder: Path, metric: str) -> float:
    """Read the newest value of a metric from a run folder's ``metrics.csv``: cheap enough to call often.

    Returns:
        The value; nan if the file or the metric is missing, or has no value. A line that ends before the value is left
        out.
    """
    try:
        names, *lines = (folder / METRICS).read_text().splitlines()
        column = next(csv.reader([names])).index(metric)
    except (OSError, ValueError):
        return math.nan
    for line in reversed(lines):
        with suppress(IndexError, ValueError):
            return float(line.split(",")[column])
    return math.nan
