"""Weights & Biases: continue a run, and go offline without a key."""

from __future__ import annotations

import os
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import WandbLogger

from fl_lightning.runs.config.resuming import tracked_run


def wandb_runs(trainer: Trainer) -> list[Any]:
    """The W&B runs of this process; empty on all devices but the first."""
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, WandbLogger)]


def wandb_facts(trainer: Trainer) -> dict[str, Any]:
    """The id, project and URL of the W&B run, for environment.yaml; empty without W&B."""
    for run in wandb_runs(trainer):
        return {"wandb": {"id": run.id, "project": run.project, "url": None if run.offline else run.url}}
    return {}


def dashboard_hints(trainer: Trainer) -> list[str]:
    """Say which command makes the dashboard of each W&B run of this process."""
    hints = []
    for run in wandb_runs(trainer):
        if not run.disabled:
            first = "once the run is sent, " if run.offline else ""
            entity = f" --entity {run.entity}" if run.entity else ""
            hints.append(f"W&B: {first}fl-lightning dashboard{entity} --project {run.project} makes its dashboard")
    return hints


def has_wandb_key() -> bool:
    """Whether there is an API key for W&B: in WANDB_API_KEY, or in the netrc file that ``wandb login`` writes."""
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return bool(os.environ.get("WANDB_API_KEY")) or _is_in_netrc(urlsplit(server).hostname or server)


def _is_in_netrc(host: str) -> bool:
    """Whether a netrc file has a password for a host."""
    named = os.environ.get("NETRC")
    for place in [named] if named else ["~/.netrc", "~/_netrc"]:
        try:
            return netrc(str(Path(place).expanduser())).authenticators(host) is not None
        except (OSError, NetrcParseError):
            continue
    return False


def offline_without_key() -> None:
    """Switch W&B to offline mode if there is no API key, unless WANDB_MODE is set."""
    if "WANDB_MODE" not in os.environ and not has_wandb_key():
        os.environ["WANDB_MODE"] = "offline"
        print("W&B: no API key found: this run is recorded offline; send it later with wandb sync wandb/offline-run-*")


def continue_wandb(folder: Path, rounds: int | None) -> None:
    """Continue the W&B run that a run folder names, unless the user gives another id.

    Args:
        folder: the run folder.
        rounds: round after which training continues; None if nothing is trained.
    """
    if (run_id := tracked_run(folder, rounds, "wandb")) is not None:
        os.environ.setdefault("WANDB_RUN_ID", run_id)  # read by W&B; an id among the logger's arguments wins
