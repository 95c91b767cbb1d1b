"""Weights & Biases: which run goes on, where there is no key, what its config says."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.runs.folder import ENVIRONMENT, METRICS


def wandb_runs(trainer: Trainer) -> list[Any]:
    """W&B's runs of this process: only the first device's has any."""
    loggers = [each for each in trainer.loggers if isinstance(each, WandbLogger)]
    return [each.experiment for each in loggers] if trainer.is_global_zero else []


def wandb_facts(trainer: Trainer) -> dict[str, Any]:
    """What environment.yaml keeps of W&B's run: its id, project and address; nothing without W&B."""
    for run in wandb_runs(trainer):
        return {"wandb": {"id": run.id, "project": run.project, "url": None if run.offline else run.url}}
    return {}


def tell_wandb(trainer: Trainer, config: Mapping[str, Any]) -> None:
    """Add to the config of W&B's run."""
    for run in wandb_runs(trainer):
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
        rounds: the round after which training goes on; None to test only.
    """
    file = folder / ENVIRONMENT
    known = yaml.safe_load(file.read_text()).get("wandb") if file.is_file() else None
    if known is None:
        return
    reached = _finished(folder / METRICS)
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
