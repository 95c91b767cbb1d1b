"""Weights & Biases: continue a run, go offline without a key, and add to a run's config."""

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

from fl_lightning.runs.folder import ENVIRONMENT, TIMINGS


def wandb_runs(trainer: Trainer) -> list[Any]:
    """The W&B runs of this process; empty on all devices but the first."""
    loggers = [each for each in trainer.loggers if isinstance(each, WandbLogger)]
    return [each.experiment for each in loggers] if trainer.is_global_zero else []


def wandb_facts(trainer: Trainer) -> dict[str, Any]:
    """The id, project and URL of the W&B run, for environment.yaml; empty without W&B."""
    for run in wandb_runs(trainer):
        return {"wandb": {"id": run.id, "project": run.project, "url": None if run.offline else run.url}}
    return {}


def tell_wandb(trainer: Trainer, config: Mapping[str, Any]) -> None:
    """Add entries to the config of the W&B run."""
    for run in wandb_runs(trainer):
        run.config.update(dict(config), allow_val_change=True)


def has_wandb_key() -> bool:
    """Whether there is an API key for W&B: in WANDB_API_KEY, or in the netrc file that ``wandb login`` writes."""
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return bool(os.environ.get("WANDB_API_KEY") or requests.utils.get_netrc_auth(server))


def offline_without_key() -> None:
    """Switch W&B to offline mode if there is no API key, unless WANDB_MODE is set."""
    if "WANDB_MODE" not in os.environ and not has_wandb_key():
        os.environ["WANDB_MODE"] = "offline"
        print("W&B: no API key found: this run is recorded offline; send it later with wandb sync wandb/offline-run-*")


@rank_zero_only
def continue_wandb(folder: Path, rounds: int | None) -> None:
    """Continue the W&B run that a run folder names, unless the user gives another id.

    W&B cannot delete rounds. So a run that goes back to an earlier round becomes a new run in W&B.

    Args:
        folder: the run folder.
        rounds: round after which training continues; None if nothing is trained.
    """
    file = folder / ENVIRONMENT
    known = yaml.safe_load(file.read_text()).get("wandb") if file.is_file() else None
    if known is None:
        return
    reached = _finished(folder / TIMINGS)
    if rounds is not None and reached > rounds:
        print(
            f"W&B: round {reached} is there already, and this run goes on from round {rounds}: it is a new one in W&B"
        )
    else:
        os.environ.setdefault("WANDB_RUN_ID", known["id"])  # read by W&B; an id among the logger's arguments wins


def _finished(timings: Path) -> int:
    """The last round that was trained to its end; 0 if there is none."""
    if not timings.is_file():
        return 0
    with timings.open(newline="") as lines:
        return max((int(row["round"]) for row in csv.DictReader(lines)), default=0)
