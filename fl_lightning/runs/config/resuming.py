"""A run that goes on: from which checkpoint, with which settings changed, and whether as the same run in trackers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lightning.pytorch.callbacks import (
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelSummary,
    ProgressBar,
    Timer,
)
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from fl_lightning.engine.rules.callback import Monitor
from fl_lightning.errors import ConfigurationError
from fl_lightning.runs.config.earlier import class_at
from fl_lightning.runs.config.secrets import hidden
from fl_lightning.runs.config.settings import CLASS, RESUMABLE, callbacks_in, changes_text, classes_text, own_settings
from fl_lightning.runs.folder.checkpoints import last_of_experiment, last_of_run, rounds_of, run_of, sound_checkpoint
from fl_lightning.runs.folder.files import ENVIRONMENT, TIMINGS, read_mapping
from fl_lightning.runs.folder.run_folder import rounds_in

SEED, CALLBACKS = "seed_everything", "trainer.callbacks"
TRACKERS = {"wandb": "W&B", "mlflow": "MLflow"}  # by the entry of environment.yaml
# Callbacks that change no round, and may come and go.
WATCHING = (
    *(Monitor, Checkpoint, DeviceStatsMonitor, LearningRateMonitor, ModelSummary, ProgressBar),
    *(EarlyStopping, Timer),  # these end a run
)


@dataclass(frozen=True)
class Resumed:
    """Holds the checkpoint that ``--ckpt_path`` names, and the run that the checkpoint belongs to.

    Attributes:
        checkpoint: path of the checkpoint.
        rounds: number of rounds that the run had finished when it saved the checkpoint.
        folder: the run folder that holds the checkpoint; None for a checkpoint outside of run folders.
        trains: whether training goes on from the checkpoint; otherwise its model is only used.
    """

    checkpoint: Path
    rounds: int
    folder: Path | None
    trains: bool

    @classmethod
    def of(cls, config: Any, experiment: Path, trains: bool) -> Self | None:
        """Find the checkpoint that a config names; None if it names none.

        Args:
            config: the config, as the parser of a command returns it.
            experiment: the folder of the experiment, in which ``ckpt_path: last`` is looked for.
            trains: whether training is to go on from the checkpoint, for which it needs more than the model.

        Raises:
            ConfigurationError: there is no such checkpoint, or it cannot be used.
        """
        if config.get("ckpt_path") is None:
            return None
        weights_only = config.get("weights_only") is not False
        if config.ckpt_path == "last":
            run = last_of_experiment(experiment)
            _warn_of_other_runs(run, config.get("config") or ())
            checkpoint = sound_checkpoint(run, weights_only)
        else:
            checkpoint = Path(config.ckpt_path)
        rounds = rounds_of(checkpoint, trains, weights_only)
        return cls(checkpoint, rounds, run_of(checkpoint), trains)

    @property
    def rounds_to_keep(self) -> int | None:
        """Number of rounds of the run folder after which training goes on; None to keep all, if nothing is trained."""
        return self.rounds if self.trains else None


def _warn_of_other_runs(chosen: Path, configs: Iterable[Any]) -> None:
    """Say that ``--ckpt_path last`` is not the run whose config.yaml was given, which may be a copy of the last run."""
    for config in configs:
        other = last_of_run(Path(str(config)).parent)
        if other.is_file() and other.parents[1].resolve() != chosen.resolve():
            rank_zero_warn(
                f"--ckpt_path last goes on with {chosen}, the experiment's last run, and not with the run of {config}: "
                f"to go on with that run, give --ckpt_path {other}"
            )


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Compare two configs of one run: the settings that affect its results, the seed and the callbacks included.

    A setting that a config lacks is null. Callbacks of Lightning's that only watch or end a run, and monitors, are
    left out; any other callback may change a round.

    Args:
        before: the config of the run so far.
        now: the config with which the run goes on.

    Returns:
        The settings that differ, by dotted names, each with its values before and now.
    """
    old = affecting(before)
    new = affecting(now)
    changed = {name: [old.get(name), new.get(name)] for name in {**old, **new} if old.get(name) != new.get(name)}
    if CALLBACKS in changed:
        # Shorter than whole configs, but the same for classes of one name from two modules.
        names = [classes_text(settings[CALLBACKS]) or None for settings in (old, new)]
        if names[0] != names[1]:
            changed[CALLBACKS] = names
    return changed


def check_unchanged(folder: Path, changed: Mapping[str, Any], allowed: bool) -> None:
    """Refuse to go on with a run whose results would change, unless that is allowed."""
    if changed and not allowed:
        raise ConfigurationError(
            f"ckpt_path: {folder} was trained with other settings: {changes_text(changed)}: go on with the run's own, "
            "start a new run without ckpt_path, or say --resume_changed true, which records the change"
        )


def affecting(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config that affect the results of a run, by dotted names."""
    config = _with_full_paths(hidden(config))
    acting = []
    for callback in callbacks_in(config):
        cls = class_at(callback["class_path"])
        if cls is None or not issubclass(cls, WATCHING):
            acting.append(callback)
    own = {name.removesuffix(CLASS): value for name, value in own_settings(config, RESUMABLE).items()}
    return {SEED: config.get(SEED), CALLBACKS: acting, **own}


def _with_full_paths(value: Any) -> Any:
    """Name each class of a config by the module that defines the class, since a class can be imported from several."""
    if isinstance(value, list):
        return [_with_full_paths(entry) for entry in value]
    if not isinstance(value, Mapping):
        return value
    settings = {name: _with_full_paths(entry) for name, entry in value.items()}
    cls = class_at(value.get("class_path"))
    if cls is not None:
        settings["class_path"] = f"{cls.__module__}.{cls.__qualname__}"
    return settings


@rank_zero_only
def tracked_run(folder: Path, rounds: int | None, tracker: str) -> str | None:
    """Return the id of the run in W&B or MLflow that a run folder names, if training continues this run.

    Neither W&B nor MLflow can delete rounds. So a run that goes back to an earlier round becomes a new run there.

    Args:
        folder: the run folder.
        rounds: round after which training continues; None if nothing is trained.
        tracker: "wandb" or "mlflow".
    """
    name = TRACKERS[tracker]
    known = read_mapping(folder, ENVIRONMENT).get(tracker)
    if known is None:
        return None
    reached = rounds_in(folder, TIMINGS)
    if rounds is not None and reached > rounds:
        print(
            f"{name}: round {reached} is there already, and this run goes on from round {rounds}: it is a new one in "
            f"{name}"
        )
        return None
    return str(known["id"])
