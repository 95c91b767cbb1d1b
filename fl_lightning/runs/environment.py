"""Write the files that describe a run when it begins: config.yaml, environment.yaml, the partition of its data."""

from __future__ import annotations

import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from fl_lightning.engine.callback import rules_of
from fl_lightning.engine.data import FederatedDataModule
from fl_lightning.engine.server import Server
from fl_lightning.runs.folder import CONFIG, ENVIRONMENT, RunFolder, run_folder, whole
from fl_lightning.runs.log import log_figure, save_arrays
from fl_lightning.runs.loggers import log_environment, log_settings
from fl_lightning.runs.mlflow import mlflow_facts
from fl_lightning.runs.pictures import bubbles
from fl_lightning.runs.settings import RULES, data_fingerprint
from fl_lightning.runs.wandb import wandb_facts, wandb_runs

PACKAGES = ("fl-lightning", "torch", "lightning", "torchvision", "torchmetrics", "numpy")
STEPS = 1000  # W&B's steps per round; a round with more steps does no harm


class SaveConfig(SaveConfigCallback):
    """Writes the run folder's config.yaml when training begins, so that a run that fails earlier overwrites nothing."""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pass  # Lightning's own class would write here

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        config, folder = self.config.clone(), trainer.log_dir  # log_dir is known only when all devices ask for it
        config.ckpt_path = None  # a new run with this config starts without a checkpoint
        if trainer.is_global_zero:
            path = Path(str(folder)) / CONFIG
            self.parser.save(config, path, skip_unset=False, overwrite=True, multifile=False)
            log_settings(trainer, yaml.safe_load(path.read_text()), path)


class RunTracking(Callback):
    """Records the environment and the partition of a run, and makes the round W&B's x-axis. Changes no result.

    When a fit begins, the run folder gets ``environment.yaml`` (versions, device, the rules in their order, a
    fingerprint of the data, the command, the ids of the W&B and MLflow runs) and ``arrays/partition.npz`` (``sizes``
    (N,), and ``counts`` (N, C) where there are classes). W&B gets the same facts in its config, MLflow the file. W&B,
    TensorBoard and MLflow get the plot of the partition.
    """

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for run in wandb_runs(trainer):  # before anything is logged
            for name in ("round", "epoch", "trainer/global_step"):  # these get no plots
                run.define_metric(name, hidden=True)
            run.define_metric("*", step_metric="round", step_sync=True)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not earlier, so that a run that fails before this point overwrites nothing.
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # set outside Trainer.__init__
            return  # a fast_dev_run writes nothing
        orchestrator = cast(Server, pl_module)
        sizes, counts = orchestrator.data.sizes, orchestrator.data.class_counts()
        save_arrays(orchestrator, "partition", sizes=sizes, **({} if counts is None else {"counts": counts}))
        folder = run_folder(trainer)
        if trainer.is_global_zero:
            facts = environment(trainer, orchestrator.data)
            _write(folder / ENVIRONMENT, facts | wandb_facts(trainer) | mlflow_facts(trainer))
            log_environment(trainer, facts, folder / ENVIRONMENT)
        if counts is not None and trainer.current_epoch == 0:
            log_figure(orchestrator, "data/partition", lambda: bubbles(counts), 0)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._drop_half_round(trainer, cast(Server, pl_module))

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._drop_half_round(trainer, cast(Server, pl_module))

    @staticmethod
    def _drop_half_round(trainer: Trainer, orchestrator: Server) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, RunFolder) and trainer.state.fn == TrainerFn.FITTING:
                logger.drop_after(orchestrator.rounds_done)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # W&B adds the round to rows without one, such as learning rates. Offline, W&B cannot know the step at which a
        # run continues, so the steps of each round begin at a fixed number. If a process is killed within a round, the
        # rows of this round are sent again with the same steps.
        round = cast(Server, pl_module).round
        for run in wandb_runs(trainer):
            run.log({"round": round}, step=max(run.step, STEPS * round), commit=False)


def environment(trainer: Trainer, data: FederatedDataModule) -> dict[str, Any]:
    """Collect the facts of a run: ``versions``, ``device``, ``rules``, ``data`` (its fingerprint) and ``command``."""
    device = trainer.strategy.root_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "device": f"{trainer.world_size} x {device.type} ({name})",
        RULES: [type(rule).__name__ for rule in rules_of(trainer)],
        "data": data_fingerprint(data),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _write(path: Path, facts: dict[str, Any]) -> None:
    before = yaml.safe_load(path.read_text()) if path.exists() else {}  # keeps W&B's id if this fit is without W&B
    with whole(path) as part:
        part.write_text(yaml.safe_dump(before | facts, sort_keys=False))
