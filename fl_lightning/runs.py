"""The run folder: ``runs/<experiment>/<version>/`` with config.yaml, metrics.csv and checkpoints."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from fl_lightning.errors import ConfigurationError

FIRST_COLUMNS = ("val/top1", "val/top3", "val/loss", "train/loss")


class RunFolder(CSVLogger):
    """Writes ``metrics.csv``, one row a round, and gives the run its folder.

    Args:
        root: folder of all runs.
        experiment: name of the experiment.
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
        self._rows: dict[int, dict[str, float]] | None = None
        self._lines: dict[int, str] = {}  # the rows as they stand in the file, but for those that have changed
        self._names: set[str] = set()

    @property
    def version(self) -> str:
        """The run's own folder below the experiment's; taken at first use, so that no two runs share it."""
        if self._version is None:
            self._version = next_version(Path(self.root_dir), take=_is_first_process())
        return str(self._version)

    @property
    def experiment(self) -> Any:
        """The logger itself: it needs no writer, and Lightning's would delete what stands in the folder."""
        return self

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml holds them."""

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
        file = Path(self.log_dir) / "metrics.csv"
        if not file.exists():
            return {}
        with file.open(newline="") as lines:
            rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(lines)]
        return {int(row.pop("round")): row for row in rows if self.rounds is None or row["round"] <= self.rounds}

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
        folder = Path(self.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "metrics.csv.part").open("w", newline="") as file:
            csv.writer(file).writerow(["round", *columns])
            file.writelines(self._lines[round] for round in sorted(self._rows))
        (folder / "metrics.csv.part").replace(folder / "metrics.csv")

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
    """The first free ``version_N`` of an experiment; its folder is made, which no second process can do."""
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


def last_checkpoint(experiment: Path) -> Path:
    """The ``last.ckpt`` that was written last in an experiment's versions.

    Raises:
        ConfigurationError: there is none.
    """
    found = sorted(experiment.glob("*/checkpoints/last.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigurationError(
            f"ckpt_path: last looks for {experiment / '*' / 'checkpoints' / 'last.ckpt'}, and there is none: start "
            "without ckpt_path, or give the path of a checkpoint"
        )
    return found[-1]


class LastCheckpoint(ModelCheckpoint):
    """``checkpoints/last.ckpt`` after every round: where a stopped run goes on."""

    def __init__(self) -> None:
        super().__init__(filename="last", save_on_train_epoch_end=True, enable_version_counter=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, but first write the round's row: Lightning logs after it saves, and a kill between would tear them."""
        for logger in trainer.loggers:
            if isinstance(logger, RunFolder):
                logger.log_metrics(trainer._logger_connector.metrics["log"])
        super().on_train_epoch_end(trainer, pl_module)


class BestCheckpoint(ModelCheckpoint):
    """``checkpoints/best.ckpt``: the round with the best monitored metric, where the model logs it.

    Args:
        monitor: name of the metric.
        mode: "max" or "min".
    """

    def __init__(self, monitor: str = "val/top1", mode: str = "max") -> None:
        super().__init__(filename="best", monitor=monitor, mode=mode, enable_version_counter=False)

    def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: dict[str, Tensor]) -> None:
        if self.monitor in monitor_candidates:
            super()._save_topk_checkpoint(trainer, monitor_candidates)
