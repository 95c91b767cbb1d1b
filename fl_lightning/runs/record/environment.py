"""Write the files that describe a run when it begins: config.yaml, environment.yaml, the partition of its data."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from fl_lightning.better import Better
from fl_lightning.engine.federation.clients import names_of
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.orchestrator import FederatedOrchestrator
from fl_lightning.engine.rules.callback import federated, rules_of
from fl_lightning.engine.rules.server import Server
from fl_lightning.files import remove_parts, whole
from fl_lightning.inside import inside
from fl_lightning.runs.catalogue import Metric, catalogue
from fl_lightning.runs.config.resuming import TRACKERS, changed_settings, check_unchanged
from fl_lightning.runs.config.secrets import hidden, hidden_arguments
from fl_lightning.runs.config.settings import RULES
from fl_lightning.runs.folder.files import CONFIG, ENVIRONMENT, NOT_RECORDED, read_mapping
from fl_lightning.runs.folder.run_folder import RunFolder, run_folder
from fl_lightning.runs.folder.yaml_text import read_yaml
from fl_lightning.runs.loggers.mlflow import mlflow_facts
from fl_lightning.runs.loggers.round_values import log_figure, save_arrays
from fl_lightning.runs.loggers.settings_logged import log_environment, log_settings
from fl_lightning.runs.loggers.wandb import wandb_facts, wandb_runs
from fl_lightning.runs.pictures import bubbles
from fl_lightning.runs.record.python_runs import HEAD, record_of

PACKAGES = ("fl-lightning", "torch", "lightning", "torchvision", "torchmetrics", "numpy")
NOTHING: Mapping[str, Any] = {}
STEPS = 1000  # W&B's steps per round; a round with more steps does no harm


class SaveConfig(SaveConfigCallback):
    """Writes the run folder's config.yaml when training begins, so that a run that fails earlier overwrites nothing."""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pass  # Lightning's own class would write here

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        config = self.config.clone()
        folder = trainer.log_dir  # known only when all devices ask for it
        config.ckpt_path = None  # a new run with this config starts without a checkpoint
        if trainer.is_global_zero:
            _save_config(trainer, Path(str(folder)), self.parser.dump(config, skip_unset=False))


def _save_config(trainer: Trainer, folder: Path, text: str, head: str = "") -> None:
    """Write config.yaml without keys and passwords, and log the settings."""
    path = inside(folder, CONFIG)
    content = read_yaml(path, text)
    if (shown := hidden(content)) != content:
        warnings.warn(f"{path} has *** in place of keys and passwords: give them to run it again", stacklevel=1)
        text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)
    with whole(path) as part:
        part.write_text(head + text)
    log_settings(trainer, shown, path)


class RunTracking(Callback):
    """Records the environment and the partition of a run, and makes the round W&B's x-axis. Changes no result.

    When a fit begins, the run folder gets ``environment.yaml`` (versions, device, the rules in their order, a
    fingerprint of the data, the command, the state of the code, the host, the times of the start and of each
    resumption, the ids of the W&B and MLflow runs) and ``arrays/partition.npz`` (``sizes`` (N,), ``counts`` (N, C)
    where there are classes, and ``names`` (N,) where clients have names). W&B gets the same facts in its config, and
    MLflow gets the file. W&B, TensorBoard and MLflow get the plot of the partition. The :class:`RunFolder` of a run
    from Python also gets ``config.yaml``, see :func:`record_of`; what such a run changes on resuming is recorded, too.
    The RunFolder gets ``better.yaml``: which values of each metric are better, as the module that logs it says.

    Args:
        changed: the settings with which a resumed run goes on differently, each with its values before and now, for the
            record; None to refuse a resumed run whose data have changed.
    """

    def __init__(self, changed: Mapping[str, Any] | None = NOTHING) -> None:
        self._changed = changed

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for run in wandb_runs(trainer):  # before anything is logged
            for name in ("round", "epoch", "trainer/global_step"):  # these get no plots
                run.define_metric(name, hidden=True)
            run.define_metric("*", step_metric="round", step_sync=True)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = run_folder(trainer)
        orchestrator = cast(Server, pl_module)
        if trainer.is_global_zero:
            remove_parts(folder)  # of a run that was killed, even where no round is left
        self._before = read_mapping(folder, ENVIRONMENT)  # of a resumed run; damage stops it here
        self._resumed_with = dict(self._changed or {})
        if orchestrator.rounds_done and (known := self._before.get("data")):
            if (data := orchestrator.data.fingerprint()) != known:
                self._resumed_with["data_fingerprint"] = [known, data]
            check_unchanged(folder, self._resumed_with, allowed=self._changed is not None)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not earlier, so that a run that fails before this point overwrites nothing.
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # set outside Trainer.__init__
            return  # a fast_dev_run writes nothing
        orchestrator = cast(Server, pl_module)
        counts = orchestrator.data.class_counts()
        names = names_of(orchestrator.data)
        partition = {"sizes": orchestrator.data.sizes, "counts": counts, "names": names}
        known = {name: array for name, array in partition.items() if array is not None}
        save_arrays(orchestrator, "partition", **known)
        folder = run_folder(trainer)
        if trainer.is_global_zero:
            callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set outside its __init__
            by_command_line = any(isinstance(callback, SaveConfig) for callback in callbacks)
            if isinstance(trainer.logger, RunFolder) and not by_command_line:
                self._record(trainer, cast(FederatedOrchestrator, pl_module), folder)
            before = self._before
            facts = environment(trainer, orchestrator.data) | _starts(before, orchestrator.round, self._resumed_with)
            kept = {name: before[name] for name in TRACKERS if name in before}  # this fit may lack these loggers
            content = facts | kept | wandb_facts(trainer) | mlflow_facts(trainer)
            path = inside(folder, ENVIRONMENT)
            with whole(path) as part:
                part.write_text(yaml.safe_dump(content, sort_keys=False))
            log_environment(trainer, facts, path)
        if counts is not None and trainer.current_epoch == 0:
            log_figure(orchestrator, "data/partition", lambda: bubbles(counts, names), 0)

    def _record(self, trainer: Trainer, orchestrator: FederatedOrchestrator, folder: Path) -> None:
        """Write the config.yaml of a run from Python."""
        before = read_mapping(folder, CONFIG) if orchestrator.rounds_done else {}
        if before and NOT_RECORDED not in before:
            return  # the command line's, which says more
        try:
            record = record_of(orchestrator)
        except Exception as error:  # of an object of the user's that cannot be looked at, which trains all the same
            warnings.warn(f"{folder}: no {CONFIG} is written, so reports compare no seeds: {error!r}", stacklevel=1)
            return
        self._resumed_with |= changed_settings(before, record) if before else {}
        text = yaml.safe_dump(record, sort_keys=False, allow_unicode=True)
        _save_config(trainer, folder, text, head=HEAD)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, RunFolder):
                logger.release()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_better(trainer, pl_module)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._write_better(trainer, pl_module)

    @override
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_better(trainer, pl_module)

    def _write_better(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write which values of the metrics logged so far are better, as the callbacks and the module say."""
        better: dict[str, Better | None] = {}
        for callback in federated(trainer):
            for metric in getattr(type(callback), "metrics", ()):
                if isinstance(metric, Metric) and metric.better and metric.key not in catalogue():
                    better[metric.key] = metric.better
        better |= cast(Server, pl_module).better
        for logger in trainer.loggers:
            if isinstance(logger, RunFolder):
                logger.write_better(better)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for logger in trainer.loggers:  # a round that was stopped half-way leaves nothing
            if isinstance(logger, RunFolder) and trainer.state.fn == TrainerFn.FITTING:
                logger.drop_after(cast(Server, pl_module).rounds_done)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # W&B adds the round to rows without one, such as learning rates. Offline, W&B cannot know the step at which a
        # run continues, so the steps of each round begin at a fixed number. If a process is killed within a round, the
        # rows of this round are sent again with the same steps.
        round = cast(Server, pl_module).round
        for run in wandb_runs(trainer):
            run.log({"round": round}, step=max(run.step, STEPS * round), commit=False)


def environment(trainer: Trainer, data: FederatedData) -> dict[str, Any]:
    """Collect the facts of a run.

    Returns:
        ``versions``, ``device``, ``rules``, ``data`` (its fingerprint), ``command``, ``host`` and, if the working
        directory is in a git repository, ``code`` (see :func:`code_state`).
    """
    device = trainer.strategy.root_device
    return {
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "device": f"{trainer.world_size} x {device.type} ({_model(device)})",
        RULES: [type(rule).__name__ for rule in rules_of(trainer)],
        "data": data.fingerprint(),
        "command": shlex.join([Path(sys.argv[0]).name, *hidden_arguments(sys.argv[1:])]),
        "host": platform.node(),
        **({"code": code} if (code := code_state()) else {}),
    }


def _model(device: torch.device) -> str:
    """Name a device's model; of a processor also the instruction set that torch uses, since both change last bits."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # later versions of torch have it
    model = known.get("cpu_name") or platform.processor() or platform.machine()
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"


def code_state() -> dict[str, Any]:
    """Ask git for the state of the user's code: the repository that the working directory is in.

    Returns:
        ``commit``, and ``dirty``: whether a file that git tracks has changed since; empty without git, repository or
        commit.
    """
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return {}
    commit = next(line.split()[-1] for line in lines if line.startswith("# branch.oid"))
    if commit == "(initial)":
        return {}
    return {"commit": commit, "dirty": any(line[0] != "#" for line in lines)}


def _starts(before: Mapping[str, Any], round: int, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time at which a run ``started``, and each time it was ``resumed``, now included, with what changed."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    if round == 1:
        return {"started": now}
    started = {"started": before["started"]} if "started" in before else {}  # environment.yaml may be gone
    resumed = {"time": now, "round": round, **({"changed": changed} if changed else {})}
    return {**started, "resumed": [*before.get("resumed", ()), resumed]}
