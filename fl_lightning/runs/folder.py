"""The run folder ``runs/<experiment>/<version>/``: its files' names, who takes it, and metrics.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from fl_lightning.runs.catalogue import FIRST_COLUMNS

CONFIG, ENVIRONMENT = "config.yaml", "environment.yaml"
METRICS, TIMINGS = "metrics.csv", "timings.csv"
CHECKPOINTS, ARRAYS = "checkpoints", "arrays"


def run_folder(trainer: Trainer) -> Path:
    """The folder of the Trainer's run. All devices must ask, or those that do wait for the others."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def array_file(folder: Path, name: str) -> Path:
    """Where a run folder keeps the arrays of a name; what belongs to a round has its number at the end."""
    return folder / ARRAYS / f"{name}.npz"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all: give another path to write to, then put that file in the place of this one.

    Folders are made as needed. If the body raises, the file stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    yield part
    part.replace(path)


class RunFolder(CSVLogger):
    """Writes ``metrics.csv``, one row a round, and gives the run its folder.

    Args:
        root: the folder of all runs.
        experiment: the name of the experiment.
        version: an existing version to continue, or None for the next free ``version_N``.
        rounds: how many rounds of that version to keep, those that the run goes on from; None for all.
    """

    def __init__(
        self,
        root: str | Path = "runs",
        experiment: str = "experiment",
        version: str | None = None,
        rounds: int | None = None,
    ) -> None:
        super().__init__(root, experiment, version)
        self.rounds = rounds
        self._taken = version
        self._rows: dict[int, dict[str, float]] | None = None
        self._lines: dict[int, str] = {}  # the rows as they stand in the file, but for those that have changed
        self._names: set[str] = set()

    @property
    @override
    def version(self) -> str:
        """The run's own folder below the experiment's; taken at first use, so that no two runs share it."""
        if self._taken is None:
            self._taken = next_version(Path(self.root_dir), take=_is_first_process())
        return self._taken

    @property
    @override
    def experiment(self) -> Any:
        """The logger itself: it needs no writer, and Lightning's would delete what stands in the folder."""
        return self

    @override
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: config.yaml holds them."""

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Add to the row of the round that the metrics name, or else of the round under way."""
        if self._rows is None:
            self._rows = self._read()
        values = {name: float(value) for name, value in metrics.items()}
        finished = max((r for r, row in self._rows.items() if "train/loss" in row), default=0)
        round = int(values.pop("round", finished + 1))
        if round > 0:
            self._rows.setdefault(round, {}).update(values)
            self._lines.pop(round, None)
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
        """Write the file anew, whole or not at all."""
        if not self._rows:
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
        """The names of all values, in their order in the file; a new one makes every line anew."""
        changed = (row for round, row in rows.items() if round not in self._lines)
        if new := {name for row in changed for name in row} - {"epoch"} - self._names:
            self._names |= new
            self._lines.clear()
        first = [name for name in FIRST_COLUMNS if name in self._names]
        return [*first, *sorted(self._names.difference(first))]


def _is_first_process() -> bool:
    return int(getattr(rank_zero_only, "rank", 0)) == 0


def next_version(experiment: Path, take: bool = True) -> str:
    """Find the first free ``version_N`` of an experiment, and make its folder, which no second process can do.

    Args:
        experiment: the experiment's folder.
        take: whether to make the folder; else the name alone is returned.
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
    """How many rounds a run folder's metrics.csv holds, by its lines alone: cheap enough to ask often."""
    try:
        return max(len((folder / METRICS).read_text().splitlines()) - 1, 0)
    except OSError:
        return 0
