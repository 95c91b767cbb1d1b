"""Checkpoints of a run: written after every round, found again, and checked before use."""

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

LAST, BEST = "last", "best"  # file names without suffix


class LastCheckpoint(ModelCheckpoint):
    """Saves ``checkpoints/last.ckpt`` after every round, from which a stopped run continues."""

    def __init__(self) -> None:
        super().__init__(filename=LAST, save_on_train_epoch_end=True, enable_version_counter=False)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Lightning logs after saving: a kill in between would leave a checkpoint whose round has no row in metrics.csv.
        for logger in trainer.loggers:
            if isinstance(logger, RunFolder):
                logger.log_metrics(metrics_to_log(trainer))
        super().on_train_epoch_end(trainer, pl_module)


class BestCheckpoint(OptionalMonitorCheckpoint):
    """Saves ``checkpoints/best.ckpt`` after the round with the best monitored metric, if the model logs this metric.

    Args:
        monitor: the name of the metric.
        mode: "max" if higher values are better, "min" if lower values are better.
    """

    def __init__(self, monitor: str = "val/top1", mode: str = "max") -> None:
        super().__init__(filename=BEST, monitor=monitor, mode=mode, enable_version_counter=False)


def last_of_run(folder: Path) -> Path:
    """Path of the ``last.ckpt`` of a run folder; the file may not exist."""
    return folder / CHECKPOINTS / f"{LAST}.ckpt"


def last_of_experiment(folder: Path) -> Path:
    """Find the most recently written ``last.ckpt`` of an experiment's versions.

    Raises:
        ConfigurationError: no version has a ``last.ckpt``.
    """
    found = sorted(folder.glob(f"*/{CHECKPOINTS}/{LAST}.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigurationError(
            f"ckpt_path: last looks for {last_of_run(folder / '*')}, and there is none: start without ckpt_path, or "
            "give the path of a checkpoint"
        )
    return found[-1]


def checkpoint_of(path: Path) -> Path:
    """Find the checkpoint that a path stands for: a run folder stands for its ``best.ckpt``, or else its ``last.ckpt``.

    Any other path stands for itself.

    Raises:
        ConfigurationError: the path is a folder without these checkpoints.
    """
    if not path.is_dir():
        return path
    candidates = [path / CHECKPOINTS / f"{name}.ckpt" for name in (BEST, LAST)]
    found = [file for file in candidates if file.is_file()]
    if not found:
        raise ConfigurationError(
            f"{path} is a folder without {CHECKPOINTS}/{BEST}.ckpt and {LAST}.ckpt: expected a checkpoint, or a run "
            "folder, runs/<experiment>/<version>"
        )
    return found[0]


def run_of(checkpoint: Path) -> Path | None:
    """The run folder that holds a checkpoint; None for a checkpoint outside of run folders."""
    folder = checkpoint.resolve().parent.parent
    return folder if checkpoint.parent.name == CHECKPOINTS and (folder / CONFIG).is_file() else None


def check_readable(path: Path) -> int:
    """Check that a checkpoint can be read, and return the number of its finished rounds.

    Raises:
        ConfigurationError: the file is missing, damaged or not from a federated run; the message says what to do.
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
