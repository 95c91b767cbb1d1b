"""Checkpoints of a run: written after every round, found again, and checked before use."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn
from packaging.version import Version
from torch import Tensor
from typing_extensions import override

from fl_lightning.engine.hosting.adapted import is_adapter
from fl_lightning.engine.rules.server import Server
from fl_lightning.errors import ConfigurationError
from fl_lightning.files import DAMAGED, is_damaged
from fl_lightning.inside import inside
from fl_lightning.runs.folder.files import CHECKPOINTS, CONFIG
from fl_lightning.runs.folder.run_folder import RunFolder

LAST, BEST = "last", "best"  # file names without suffix
LIGHTNING = "pytorch-lightning_version"
NEEDED = ("loops", "optimizer_states", "callbacks", LIGHTNING)  # entries of a checkpoint that a resumed run needs
PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")  # in the state of a ModelCheckpoint
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
                logger.write()
        super().on_train_epoch_end(trainer, pl_module)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning forgets scores and files where the path of their folder has changed (a run folder that was moved or
        # copied, another working directory), and a worse round would overwrite best.ckpt.
        states = checkpoint["callbacks"]
        for callback in trainer.checkpoint_callbacks:
            state = states.get(callback.state_key) or {}
            if isinstance(callback, ModelCheckpoint) and state.get("dirpath") not in (None, callback.dirpath):
                states[callback.state_key] = trainer.strategy.broadcast(_in_folder(state, str(callback.dirpath)))


class BestCheckpoint(ModelCheckpoint):
    """Saves ``checkpoints/best.ckpt`` after the round with the best monitored metric, if the model logs this metric.

    Args:
        monitor: the name of the metric.
        mode: "max" if higher values are better, "min" if lower values are better; None to save the round with the
            highest value if the module that logs the metric says that higher values are better, else none.
    """

    def __init__(self, monitor: str = "val/top1", mode: str | None = None) -> None:
        super().__init__(filename=BEST, monitor=monitor, mode=mode or "max", enable_version_counter=False)
        self._asks_module = mode is None
        self._told = False  # that the module does not say it

    @override
    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        if self.monitor not in monitor_candidates:  # Lightning would end the run
            return
        server = cast(Server, trainer.lightning_module)
        if not self._asks_module or server.better.get(self.monitor) == "higher":
            super()._save_topk_checkpoint(trainer, monitor_candidates)
        elif not self._told:
            self._told = True
            module = type(server.client).__name__
            rank_zero_warn(
                f"no {BEST}.ckpt is saved: {module} does not say that higher values of {self.monitor} are better; let "
                f'it have higher_is_better = ("{self.monitor}",), or add a ModelCheckpoint with a mode'
            )


def _in_folder(state: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return a ModelCheckpoint's state with the paths that its files have in another folder, if any lies there."""

    def now(path: str) -> str:
        return str(Path(folder, os.path.relpath(path, state["dirpath"]))) if path else ""

    paths = {name: now(state[name]) for name in PATHS}
    scores = {now(path): score for path, score in state["best_k_models"].items()}
    if not any(Path(path).is_file() for path in (*paths.values(), *scores)):
        return state  # of a run that goes on in a new folder, whose best round is still to come
    return {**state, **paths, "dirpath": folder, "best_k_models": scores}


def metrics_to_log(trainer: Trainer) -> dict[str, Any]:
    """Return the metrics that the Trainer gives to its loggers at the end of the current epoch."""
    return trainer._logger_connector.metrics["log"]


def last_of_run(folder: Path) -> Path:
    """Return the path of the ``last.ckpt`` of a run folder; the file may not exist."""
    return inside(folder, CHECKPOINTS, f"{LAST}.ckpt")


def last_of_experiment(folder: Path) -> Path:
    """Find the run folder with the most recently written ``last.ckpt`` of an experiment's versions.

    Raises:
        ConfigurationError: no version has a ``last.ckpt``.
    """
    written = sorted(folder.glob(f"*/{CHECKPOINTS}/{LAST}.ckpt"), key=lambda path: path.stat().st_mtime)
    if not written:
        raise ConfigurationError(
            f"ckpt_path: last looks for {last_of_run(folder / '*')}, but there is no such file: start without "
            "ckpt_path, or give the path of a checkpoint"
        )
    return written[-1].parents[1]


def checkpoint_of(path: Path) -> Path:
    """Find the checkpoint that a path stands for: a run folder stands for its ``best.ckpt``, or else its ``last.ckpt``.

    Any other path stands for itself, and so does a folder with an adapter of peft.

    Raises:
        ConfigurationError: the path is another folder without these checkpoints.
    """
    if not path.is_dir() or is_adapter(path):
        return path
    candidates = [inside(path, CHECKPOINTS, f"{name}.ckpt") for name in (BEST, LAST)]
    for file in candidates:
        if file.is_file():
            return file
    raise ConfigurationError(
        f"{path} is a folder without {CHECKPOINTS}/{BEST}.ckpt and {LAST}.ckpt: expected a checkpoint, or a run "
        "folder, runs/<experiment>/<version>"
    )


def run_of(checkpoint: Path) -> Path | None:
    """Return the run folder that holds a checkpoint; None for a checkpoint outside of run folders.

    Raises:
        ConfigurationError: a link leads from the run folder to the checkpoint.
    """
    folder = checkpoint.parent.parent.resolve()
    if checkpoint.parent.name != CHECKPOINTS or not inside(folder, CONFIG).is_file():
        return None
    inside(folder, CHECKPOINTS, checkpoint.name)
    return folder


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
    run_of(path)  # refuses a link that leads out of the run folder
    if not path.is_file():
        raise ConfigurationError(f"{option}: there is no file {path}; expected {EXPECTED[option]}")
    try:
        intact = not is_damaged(path)
        content = torch.load(path, map_location="cpu", weights_only=weights_only, mmap=True) if intact else None
    except pickle.UnpicklingError:
        objects = ", ".join(torch.serialization.get_unsafe_globals_in_checkpoint(path))
        raise ConfigurationError(
            f"{option}: {path} cannot be read, it holds objects ({objects}): save tensors and plain values in "
            "on_save_checkpoint; if you trust the file, fit and test read it with --weights_only false"
        ) from None
    except Exception:
        content = None
    if content is None:
        raise ConfigurationError(f"{option}: {path} {DAMAGED}")
    if not isinstance(content, dict) or not {"state_dict", "rounds_done"} <= set(content):
        raise ConfigurationError(f"{option}: {path} is a checkpoint, but not of a federated run: it has no rounds_done")
    rounds = content["rounds_done"]
    if type(rounds) is not int or rounds < 0:
        raise ConfigurationError(f"{option}: {path} is damaged: rounds_done must be a number of rounds, got {rounds!r}")
    return content


def rounds_of(path: Path, resumes: bool, weights_only: bool = True) -> int:
    """Check a checkpoint and return the number of its finished rounds.

    Args:
        path: the checkpoint.
        resumes: whether a run continues from the checkpoint, for which the checkpoint needs more than the model.
        weights_only: see :func:`read_checkpoint`.

    Raises:
        ConfigurationError: see :func:`read_checkpoint`; or the checkpoint lacks what a run needs to go on, or was saved
            by a newer version of Lightning.
    """
    content = read_checkpoint(path, "ckpt_path", weights_only)
    if resumes:
        _check_resumable(path, content)
    return int(content["rounds_done"])


def _check_resumable(path: Path, content: Mapping[str, Any]) -> None:
    if missing := [name for name in NEEDED if not content.get(name)]:
        raise ConfigurationError(
            f"ckpt_path: {path} holds a model, but no {', '.join(missing)}, without which a run cannot go on: use "
            "another checkpoint, or begin with this model by --model.init_from"
        )
    rounds = content["rounds_done"]
    epoch = content.get("epoch")
    if epoch not in (rounds - 1, rounds):
        raise ConfigurationError(f"ckpt_path: {path} is damaged: rounds_done is {rounds}, and its epoch is {epoch}")
    saved, ours = (Version(version).release[:2] for version in (content[LIGHTNING], lightning.__version__))
    if saved > ours:
        raise ConfigurationError(
            f"ckpt_path: {path} was saved by Lightning {content[LIGHTNING]}, newer than the installed "
            f"{lightning.__version__}: install that version to go on"
        )


def sound_checkpoint(folder: Path, weights_only: bool = True) -> Path:
    """Choose the checkpoint from which a run goes on: ``last.ckpt``, or if damaged the newest sound one.

    A line says which checkpoint stands in for a damaged one.

    Args:
        folder: the run folder.
        weights_only: see :func:`read_checkpoint`.

    Raises:
        ConfigurationError: ``last.ckpt`` is missing, or damaged with no other sound checkpoint beside it.
    """
    last = last_of_run(folder)
    try:
        rounds_of(last, True, weights_only)
        return last
    except ConfigurationError as error:
        others = []
        for path in last.parent.glob("*.ckpt") if last.is_file() else ():
            with suppress(ConfigurationError):
                others.append((rounds_of(path, True, weights_only), path))
        if not others:
            raise
        rounds, path = max(others)
        rank_zero_warn(f"{error}; the run goes on from {path}, after round {rounds}")
        return path
