"""Runs of W&B and MLflow that environment.yaml names: whether training continues them."""

from __future__ import annotations

import csv
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.inside import inside
from fl_lightning.runs.files import ENVIRONMENT, TIMINGS, read_mapping

NAMES = {"wandb": "W&B", "mlflow": "MLflow"}  # by the entry of environment.yaml


@rank_zero_only
def tracked_run(folder: Path, rounds: int | None, tracker: str) -> str | None:
    """Return the id of the run in W&B or MLflow that a run folder names, if training continues this run.

    Neither W&B nor MLflow can delete rounds. So a run that goes back to an earlier round becomes a new run there.

    Args:
        folder: the run folder.
        rounds: round after which training continues; None if nothing is trained.
        tracker: "wandb" or "mlflow".
    """
    name, known = NAMES[tracker], read_mapping(folder, ENVIRONMENT).get(tracker)
    if known is None:
        return None
    reached = _finished(inside(folder, TIMINGS))
    if rounds is not None and reached > rounds:
        print(
            f"{name}: round {reached} is there already, and this run goes on from round {rounds}: it is a new one in "
            f"{name}"
        )
        return None
    return str(known["id"])


def _finished(timings: Path) -> int:
    """The last round that was trained to its end; 0 if there is none."""
    if not timings.is_file():
        return 0
    with timings.open(newline="") as lines:
        return max((int(row["round"]) for row in csv.DictReader(lines)), default=0)
