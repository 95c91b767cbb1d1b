"""RunTracking: what a run folder and W&B know of a run beside its metrics."""

from __future__ import annotations

import csv
import hashlib
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import requests
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from fl_lightning.data import FederatedDataModule
from fl_lightning.orchestrator import FederatedOrchestrator
from fl_lightning.overview import bubbles
from fl_lightning.record import log_figure, save_arrays
from fl_lightning.seeding import isolated, seed_globals

PACKAGES = ("fl-lightning", "torch", "lightning", "torchvision", "torchmetrics", "numpy")
SAMPLED = 16  # clients of whose data a fingerprint sees two examples
STEPS = 1000  # of W&B for each round; more in a round do no harm
CPU = torch.device("cpu")


class RunTracking(Callback):
    """Keeps what is needed to understand a run later, and makes the round W&B's x-axis. It changes no result.

    When a fit begins, the run folder gets ``environment.yaml`` (versions, device, :func:`fingerprint` of the data, the
    command, W&B's id of the run) and ``arrays/partition.npz`` (``sizes`` (N,), and ``counts`` (N, C) where there are
    classes). W&B gets the same facts in its config, and W&B and TensorBoard the plot of the partition.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lightning's hook: before anything is logged."""
        for run in _wandb_runs(trainer):
            for name in ("round", "epoch", "trainer/global_step"):  # no plots of their own
                run.define_metric(name, hidden=True)
            run.define_metric("*", step_metric="round", step_sync=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's hook: no run that fails before touches an earlier one's files."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # set outside Trainer.__init__
            return  # it leaves nothing behind
        orchestrator = cast(FederatedOrchestrator, pl_module)
        sizes, counts = orchestrator.data.sizes, orchestrator.data.class_counts()
        save_arrays(orchestrator, "partition", sizes=sizes, **({} if counts is None else {"counts": counts}))
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # all devices must ask
        if trainer.is_global_zero:
            facts = environment(trainer, orchestrator.data)
            _write(folder / "environment.yaml", facts | _wandb_facts(trainer))
            tell_wandb(trainer, {"environment": facts})
        if counts is not None and trainer.current_epoch == 0:
            log_figure(orchestrator, "data/partition", lambda: bubbles(counts), 0)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's hook: W&B adds the round to rows that come without one, such as learning rates.

        Offline, W&B cannot know at which of its own steps a run goes on: so each round's steps begin at a number of
        their own. What a killed process had sent of a round comes again under the same numbers.
        """
        round = cast(FederatedOrchestrator, pl_module).round
        for run in _wandb_runs(trainer):
            run.log({"round": round}, step=max(run.step, STEPS * round), commit=False)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Lightning's hook: what is logged after a client, not after a round, has the round as its step, too."""
        orchestrator = cast(FederatedOrchestrator, pl_module)
        orchestrator._set_step(orchestrator.round)


def environment(trainer: Trainer, data: FederatedDataModule) -> dict[str, Any]:
    """What a run ran on: ``versions``, ``device``, ``data`` (its fingerprint) and ``command``."""
    device = trainer.strategy.root_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "device": f"{trainer.world_size} x {device.type} ({name})",
        "data": fingerprint(data),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def fingerprint(data: FederatedDataModule) -> str:
    """16 hexadecimal digits that tell federations apart: of every client's size and class counts, and some examples.

    Of up to 16 clients the first and the last example count. They are read with fixed seeds, as local training reads
    them, so augmentation makes no difference; one that cannot be read, or not twice the same, is left out.

    Args:
        data: set up.
    """
    digest = hashlib.sha256()
    for known in (data.sizes, data.class_counts()):
        if known is not None:
            digest.update(_content(known))
    holders = data.sizes.nonzero().flatten().tolist()
    for client in holders[:: max(1, -(-len(holders) // SAMPLED))]:
        digest.update(_examples(data, client))
    return digest.hexdigest()[:16]


def _examples(data: FederatedDataModule, client: int) -> bytes:
    def read() -> bytes:
        with isolated(CPU):
            seed_globals(0, CPU)
            dataset = data.client_dataset(client)
            return b"".join(_content(dataset[index]) for index in (0, len(dataset) - 1))  # type: ignore[arg-type]  # map-style

    try:
        return first if (first := read()) == read() else b""
    except Exception:  # whatever is wrong with it, training says so better
        return b""


def _content(value: Any) -> bytes:
    """An example's bytes: of tensors, arrays, images, numbers and texts in lists and dicts."""
    if isinstance(value, Mapping):
        value = [each for pair in value.items() for each in pair]
    if isinstance(value, list | tuple):
        return b"".join(map(_content, value))
    array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"{type(value).__name__} has no bytes of its own")  # but addresses, another each time
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def _write(path: Path, facts: dict[str, Any]) -> None:
    before = yaml.safe_load(path.read_text()) if path.exists() else {}  # W&B's id stays, if this fit does without W&B
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(yaml.safe_dump(before | facts, sort_keys=False))
    part.replace(path)


# Weights & Biases


def _wandb_runs(trainer: Trainer) -> list[Any]:
    """Those of this process: only the first device's has any."""
    loggers = [each for each in trainer.loggers if isinstance(each, WandbLogger)]
    return [each.experiment for each in loggers] if trainer.is_global_zero else []


def _wandb_facts(trainer: Trainer) -> dict[str, Any]:
    for run in _wandb_runs(trainer):
        return {"wandb": {"id": run.id, "project": run.project, "url": None if run.offline else run.url}}
    return {}


def tell_wandb(trainer: Trainer, config: Mapping[str, Any]) -> None:
    """Add to the config of W&B's run."""
    for run in _wandb_runs(trainer):
        run.config.update(dict(config), allow_val_change=True)


def has_wandb_key() -> bool:
    """Whether there is an API key for W&B: in WANDB_API_KEY, or where ``wandb login`` puts it."""
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return bool(os.environ.get("WANDB_API_KEY") or requests.utils.get_netrc_auth(server))


def offline_without_key() -> None:
    """Let W&B write to disk where it has no key to send with."""
    if "WANDB_MODE" not in os.environ and not has_wandb_key():
        os.environ["WANDB_MODE"] = "offline"
        print("W&B: no API key found: this run is recorded offline; send it later with wandb sync wandb/offline-run-*")


@rank_zero_only
def continue_wandb(folder: Path, rounds: int | None) -> None:
    """Let W&B go on with the run that a run folder names, unless an id was given.

    W&B takes no rounds back. So a run that goes back to an earlier round than it had reached is a new one there.

    Args:
        folder: the run folder.
        rounds: after which training goes on; None to test only.
    """
    file = folder / "environment.yaml"
    known = yaml.safe_load(file.read_text()).get("wandb") if file.is_file() else None
    if known is None:
        return
    reached = _finished(folder / "metrics.csv")
    if rounds is not None and reached > rounds:
        print(
            f"W&B: round {reached} is there already, and this run goes on from round {rounds}: it is a new one in W&B"
        )
    else:
        os.environ.setdefault("WANDB_RUN_ID", known["id"])  # read by W&B; an id among the logger's arguments wins


def _finished(metrics: Path) -> int:
    """The last round that was trained to its end."""
    if not metrics.is_file():
        return 0
    with metrics.open(newline="") as lines:
        return max((int(row["round"]) for row in csv.DictReader(lines) if row.get("train/loss")), default=0)
