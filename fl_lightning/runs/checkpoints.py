"""Checkpoints of a run: written after every round, found again, and checked before use."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

from fl_lightning.engine.lightning_private import OptionalMonitorCheckpoint, metrics_to_log
from fl_lightning.errors import ConfigurationError
from fl_lightning.runs.folder import CHECKPOINTS, CONFIG, RunFolder

LAST, BEST = "last", "best"  # file names without suffix
EXPECTED = {"ckpt_path": "a path to a .ckpt, or 'last'", "export": "a run folder, or a path to a .ckpt"}


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


def read_checkpoint(path: Path, option: Literal["ckpt_path", "export"], weights_only: bool = True) -> dict[str, Any]:
    """Read the checkpoint of a federated run; tensors stay on disk until they are used.

    Args:
        path: the file.
        option: the command or the option that gave the path, for messages.
        weights_only: whether to refuse a file that holds objects of other classes than torch allows by default, since
            making such objects runs code.

    Raises:
        ConfigurationError: the file is missing, damaged or not from a federated run; the message says what to do.
    """
    if not path.is_file():
        raise ConfigurationError(f"{option}: there is no file {path}; expected {EXPECTED[option]}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        content = None if damaged else torch.load(path, map_location="cpu", weights_only=weights_only, mmap=True)
    except pickle.UnpicklingError:
        objects = ", ".join(torch.serialization.get_unsafe_globals_in_checkpoint(path))
        raise ConfigurationError(
            f"{option}: {path} cannot be read, it holds objects ({objects}): save tensors and plain values in "
            "on_save_checkpoint; if you trust the file, fit and test read it with --weights_only false"
        ) from None
    except Exception:
        content = None
    if content is None:
        raise ConfigurationError(
            f"{option}: {path} cannot be read, it is damaged or no checkpoint: use another one of the run's checkpoints"
        )
    if not {"state_dict", "rounds_done"} <= set(content):
        raise ConfigurationError(f"{option}: {path} is a checkpoint, but not of a federated run: it has no rounds_done")
    return dict(content)


def check_readable(path: Path, weights_only: bool = True) -> int:
    """Check that ``read_checkpoint`` can read a checkpoint, and return the number of its finished rounds."""
    return int(read_checkpoint(path, "ckpt_path", weights_only)["rounds_done"])
