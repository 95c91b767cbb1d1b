"""What a run writes down of itself when it begins: config.yaml, environment.yaml, the partition of its data."""

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
from typing_extensions import override

from fl_lightning.engine.callback import rules_of
from fl_lightning.engine.data import FederatedDataModule
from fl_lightning.engine.lightning_private import set_step
from fl_lightning.engine.server import Server
from fl_lightning.runs.folder import CONFIG, ENVIRONMENT, run_folder, whole
from fl_lightning.runs.log import log_figure, save_arrays
from fl_lightning.runs.pictures import bubbles
from fl_lightning.runs.settings import RULES, data_fingerprint, settings_fingerprint
from fl_lightning.runs.wandb import tell_wandb, wandb_facts, wandb_runs

PACKAGES = ("fl-lightning", "torch", "lightning", "torchvision", "torchmetrics", "numpy")
STEPS = 1000  # of W&B for each round; more in a round do no harm


class SaveConfig(SaveConfigCallback):
    """Writes the run folder's config.yaml when training begins: no run that fails before touches an earlier one's."""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pass  # where Lightning's own class would write

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        config, folder = self.config.clone(), trainer.log_dir  # known to all devices only when all ask
        config.ckpt_path = None  # a new run that is to be the same starts without
        if trainer.is_global_zero:
            path = Path(str(folder)) / CONFIG
            self.parser.save(config, path, skip_unset=False, overwrite=True, multifile=False)
            saved = yaml.safe_load(path.read_text())
            tell_wandb(trainer, saved | {"settings": settings_fingerprint(saved)})


class RunTracking(Callback):
    """Keeps what is needed to understand a run later, and makes the round W&B's x-axis. It changes no result.

    When a fit begins, the run folder gets ``environment.yaml`` (versions, device, the rules in their order, a
    fingerprint of the data, the command, W&B's id of the run) and ``arrays/partition.npz`` (``sizes`` (N,), and
    ``counts`` (N, C) where there are classes). W&B gets the same facts in its config, and W&B and TensorBoard the plot
    of the partition.
    """

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for run in wandb_runs(trainer):  # before anything is logged
            for name in ("round", "epoch", "trainer/global_step"):  # no plots of their own
                run.define_metric(name, hidden=True)
            run.define_metric("*", step_metric="round", step_sync=True)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not earlier: no run that fails before touches an earlier one's files.
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # set outside Trainer.__init__
            return  # it leaves nothing behind
        orchestrator = cast(Server, pl_module)
        sizes, counts = orchestrator.data.sizes, orchestrator.data.class_counts()
        save_arrays(orchestrator, "partition", sizes=sizes, **({} if counts is None else {"counts": counts}))
        folder = run_folder(trainer)
        if trainer.is_global_zero:
            facts = environment(trainer, orchestrator.data)
            _write(folder / ENVIRONMENT, facts | wandb_facts(trainer))
            tell_wandb(trainer, {"environment": facts})
        if counts is not None and trainer.current_epoch == 0:
            log_figure(orchestrator, "data/partition", lambda: bubbles(counts), 0)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # W&B adds the round to rows that come without one, such as learning rates. Offline, it cannot know at which of
        # its own steps a run goes on: so each round's steps begin at a number of their own. What a killed process had
        # sent of a round comes again under the same numbers.
        round = cast(Server, pl_module).round
        for run in wandb_runs(trainer):
            run.log({"round": round}, step=max(run.step, STEPS * round), commit=False)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        # What is logged after a client, not after a round, has the round as its step, too.
        set_step(trainer, cast(Server, pl_module).round)


def environment(trainer: Trainer, data: FederatedDataModule) -> dict[str, Any]:
    """What a run ran on: ``versions``, ``device``, ``rules``, ``data`` (its fingerprint) and ``command``."""
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
    before = yaml.safe_load(path.read_text()) if path.exists() else {}  # W&B's id stays, if this fit does without W&B
    with whole(path) as part:
        part.write_text(yaml.safe_dump(before | facts, sort_keys=False))
