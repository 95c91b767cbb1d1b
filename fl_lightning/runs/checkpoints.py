"""Checkpoints of a run: written after every round, found again, and looked at before they are used."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

from fl_lightning.engine.lightning_private import OptionalMonitorCheckpoint, metrics_to_log
from fl_lightning.errors import ConfigurationError
from fl_lightning.runs.folder import CHECKPOINTS, CONFIG, RunFolder

LAST, BEST = "last", "best"  # without suffix


class LastCheckpoint(ModelCheckpoint):
    """Saves ``checkpoints/last.ckpt`` after every round: where a stopped run goes on."""

    def __init__(self) -> None:
        super().__init__(filename=LAST, save_on_train_epoch_end=True, enable_version_counter=False)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Lightning logs after it saves: a kill in between would leave a checkpoint whose round has no row.
        for logger in trainer.loggers:
            if isinstance(logger, RunFolder):
                logger.log_metrics(metrics_to_log(trainer))
        super().on_train_epoch_end(trainer, pl_module)


class BestCheckpoint(OptionalMonitorCheckpoint):
    """Saves ``checkpoints/best.ckpt``: the round with the best monitored metric, where the model logs it.

    Args:
        monitor: the name of the metric.
        mode: "max" or "min".
    """

    def __init__(self, monitor: str = "val/top1", mode: str = "max") -> None:
        super().__init__(filename=BEST, monitor=monitor, mode=mode, enable_version_counter=False)


def last_of_run(folder: Path) -> Path:
    """The ``last.ckpt`` of a run folder, which may not be there."""
    return folder / CHECKPOINTS / f"{LAST}.ckpt"


def last_of_experiment(folder: Path) -> Path:
    """Find the ``last.ckpt`` that was written last in an experiment's versions.

    Raises:
        ConfigurationError: there is none.
    """
    found = sorted(folder.glob(f"*/{CHECKPOINTS}/{LAST}.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigurationError(
            f"ckpt_path: last looks for {last_of_run(folder / '*')}, and there is none: start without ckpt_path, or "
            "give the path of a checkpoint"
        )
    return found[-1]


def run_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in; None if it lies elsewhere."""
    folder = checkpoint.resolve().parent.parent
    return folder if checkpoint.parent.name == CHECKPOINTS and (folder / CONFIG).is_file() else None


def check_readable(path: Path) -> int:
    """Read how many rounds a checkpoint holds.

    Raises:
        ConfigurationError: the file is missing, damaged or not a federated run's; says which, and what to do.
    """
    if not path.is_file():
        raise ConfigurationError(f"ckpt_path: there is no file {path}; expected a path to a .ckpt, or 'last'")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        content = None if damaged else torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:
        content = None
    if content is None:
        raise ConfigurationError(
            f"ckpt_path: {path} cannot be read, it is damaged or no checkpoint: "
            "use another one of the run's checkpoints"
        )
    if not {"state_dict", "rounds_done"} <= set(content):
        raise ConfigurationError(
            f"ckpt_path: {path} is a checkpoint, but not of a federated run: it has no rounds_done"
        )
    return int(content["rounds_done"])
