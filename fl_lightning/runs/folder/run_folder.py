"""The run folder ``runs/<experiment>/<version>/``: takes a free version, writes metrics.csv and better.yaml."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from fl_lightning.better import Better
from fl_lightning.errors import ConfigurationError
from fl_lightning.files import whole
from fl_lightning.inside import inside, within
from fl_lightning.runs.folder.files import BETTER, CHECKPOINTS, METRICS, read_mapping
from fl_lightning.runs.folder.lock import Holds, held
from fl_lightning.runs.folder.metrics_file import MetricsFile, last_lines


def run_folder(trainer: Trainer) -> Path:
    """Return the folder of the Trainer's run. All devices must call this, or the calling ones wait for the others."""
    return Path(trainer.log_dir or trainer.default_root_dir)


class RunFolder(CSVLogger):
    """Writes ``metrics.csv``, one row per round, and chooses the run folder.

    A round's row is written once, when the round is over (:meth:`write`), at the end of the file. The file is written
    anew only if a new metric needs a column, or an earlier row changes.

    Args:
        root: the folder of all runs.
        experiment: the name of the experiment.
        version: name of an existing version to continue; None for the next free ``version_N``.
        rounds: number of rounds of the existing version to keep, after which the run continues; None for all.
        holds: the locks that this process holds, to which the run folder's lock is added; None to take no lock.
        optional: whether to warn where the run folder cannot be written, instead of raising an error.

    Raises:
        ConfigurationError: the experiment's folder would not lie below the root, another process trains the version, or
            the version's ``metrics.csv`` is damaged.
    """

    def __init__(
        self,
        root: str | Path = "runs",
        experiment: str = "experiment",
        version: str | None = None,
        rounds: int | None = None,
        holds: Holds | None = None,
        optional: bool = False,
    ) -> None:
        check_experiment(experiment)
        super().__init__(root, experiment, version)
        self._taken = version
        self._holds = holds
        self._optional = optional
        self._round = 0  # the round of the row that is not complete yet
        self._row: dict[str, str] = {}
        self._written: dict[str, str] | None = None
        self._file = None
        self._better: Mapping[str, Better | None] = {}  # as in better.yaml
        if version is not None:
            self._hold()
            within(Path(self.log_dir), CHECKPOINTS)  # where Lightning writes and deletes
            self._file = MetricsFile(inside(Path(self.log_dir), METRICS), rounds)

    @property
    def is_taken(self) -> bool:
        """Whether this process has taken a version; after a fit in forked processes, it has none."""
        return self._taken is not None

    @property
    @override
    def version(self) -> str:
        """Name of the run folder in the experiment's folder; taken on first access, so that no two runs share one."""
        if self._taken is None:
            self._taken = next_version(Path(self.root_dir), take=_is_first_process())
            if self._holds is not None and _is_first_process():
                self._holds.callback(_remove_if_empty, Path(self.log_dir))  # after the lock is released
            self._hold()
        return self._taken

    @property
    def has_rounds(self) -> bool:
        """Whether ``metrics.csv`` has a row, or will have one when the fit is over; False in a fit of no rounds."""
        return bool(self._round or (self._file and self._file.last))

    def release(self) -> None:
        """Release the lock of the run folder, when the fit is over."""
        if self._holds is not None:
            self._holds.close()

    def _hold(self) -> None:
        if self._holds is not None and _is_first_process():
            with self._writing():
                self._holds.enter_context(held(Path(self.log_dir)))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Go on with a warning where the run folder cannot be written, if the record is optional."""
        try:
            yield
        except OSError as error:
            if not self._optional:
                raise
            warnings.warn(f"{self.log_dir} cannot be written and stays as it is: {error.strerror}", stacklevel=1)

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
        """Add metrics to the row of a round: the value of the metric ``round``, or else ``step``.

        Without both, the metrics are added to the last row.
        """
        values = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        last = self._round or (self._file.last if self._file else 0) or 1
        round = int(values.pop("round", last if step is None else step))
        if round <= 0:
            return
        if round != self._round:
            self.write()
            self._begin_row(round)
        self._row |= {name: f"{value:.7g}" for name, value in values.items()}

    @override
    def save(self) -> None:
        """Do nothing: Lightning calls this several times in a round; :meth:`write` writes."""

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the last row."""
        self.write()

    @rank_zero_only
    def write(self) -> None:
        """Write what is new in the row of the current round to ``metrics.csv``."""
        if self._round and self._row != self._written:
            self._written = dict(self._row)
            with self._writing():
                self._file = self._file or MetricsFile(inside(Path(self.log_dir), METRICS))
                self._file.add(self._round, self._row)

    @rank_zero_only
    def write_better(self, better: Mapping[str, Better | None]) -> None:
        """Add to ``better.yaml`` which values of metrics are better, by name; None where nobody says."""
        if better.items() <= self._better.items():
            return
        with self._writing():
            folder = Path(self.log_dir)
            self._better = {**read_mapping(folder, BETTER), **better}
            with whole(inside(folder, BETTER)) as part:
                part.write_text(yaml.safe_dump(dict(self._better), allow_unicode=True))

    @rank_zero_only
    def drop_after(self, round: int) -> None:
        """Drop this process's row after a round, which belongs to a round that was stopped half-way."""
        if self._round > round:
            if self._file and self._written is not None:
                self._file = MetricsFile(self._file.path, round)
                self._file.cut()
            self._begin_row(0)

    def _begin_row(self, round: int) -> None:
        self._round = round
        self._row = {}
        self._written = None


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


def _remove_if_empty(folder: Path) -> None:
    """Remove the folder of a run that failed before it wrote a file, and the experiment's if it has no other run."""
    with suppress(OSError):  # a folder that holds anything stays
        folder.rmdir()
        folder.parent.rmdir()


def rounds_in(folder: Path, file: str = METRICS) -> int:
    """Read the number of rounds from the end of a run folder's CSV file: cheap enough to call often."""
    for line in last_lines(inside(folder, file)):
        with suppress(ValueError):
            return int(line.split(",")[0])
    return 0


def newest_in(folder: Path, metric: str) -> float:
    """Read the newest value of a metric from a run folder's ``metrics.csv``: cheap enough to call often.

    Returns:
        The value; nan if the file or the metric is missing, or has no value. An incomplete line is ignored.
    """
    path = inside(folder, METRICS)
    try:
        with path.open(newline="") as file:
            column = next(csv.reader(file)).index(metric)
    except (OSError, ValueError, StopIteration):
        return math.nan
    for line in last_lines(path):
        with suppress(IndexError, ValueError):
            return float(line.split(",")[column])
    return math.nan
