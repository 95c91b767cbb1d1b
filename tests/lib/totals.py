"""Totals, a rule that keeps tensors for its clients, and runs with it on given updates."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator, LocalRun
from fl_lightning.runs.folder.checkpoints import BestCheckpoint, LastCheckpoint
from lib import toy

CLIENTS, DRAWN, SIZE = 6, 3, 4
UPDATES = torch.randn(CLIENTS, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Totals(FederatedCallback):
    """Keeps the sum of each client's updates, and of all; both change how clients train from then on."""

    def on_before_client_step(self, run: LocalRun) -> None:
        own = self.recall(f"sum/{run.client}", torch.zeros_like(run.grads))
        run.grads.add_(own + self.recall("all", own), alpha=0.1)

    def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
        zero = torch.zeros_like(cohort.anchor)
        for client, delta in zip(cohort.clients, cohort.deltas, strict=True):
            self.state[f"sum/{client}"] = self.recall(f"sum/{client}", zero) + delta
        self.state["all"] = self.recall("all", zero) + cohort.deltas.sum(0)
        return cohort


class Often(BestCheckpoint):
    """best.ckpt after every round."""

    def __init__(self) -> None:
        super().__init__(monitor="round")


def train(
    folder: Path,
    rounds: int = 8,
    *callbacks: Callback,
    states: Any = "disk",
    resume: Path | None = None,
    rule: FederatedCallback | None = None,
    participation: int = DRAWN,
    policy: Any = "raise",
) -> tuple[FederatedOrchestrator, Any]:
    """Half of six clients with given updates a round; the orchestrator and the rule afterwards."""
    orchestrator = FederatedOrchestrator(toy.Linear(SIZE), client_states=states, on_bad_update=policy)
    rule = rule or Totals()
    data = toy.GivenData(-UPDATES, samples=[1, 2, 3, 4, 5, 6], participation=participation)
    trainer = toy.trainer(
        rule, *(callbacks or [LastCheckpoint()]), rounds=rounds, default_root_dir=folder, enable_checkpointing=True
    )
    trainer.fit(orchestrator, datamodule=data, ckpt_path=resume)
    return orchestrator, rule


def files(folder: Path, rule: str = "Totals") -> list[str]:
    """Those of single clients, relative to the rule's folder."""
    root = folder / "states" / rule
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != "id")


def files_in(checkpoint: Path, rule: str = "Totals") -> dict[str, str]:
    """The file that a checkpoint names for each client's tensor, relative to the rule's folder."""
    saved = torch.load(checkpoint, weights_only=True)["callbacks"][rule]
    numbers = zip(json.loads(saved["names"]), saved["numbers"].tolist(), strict=True)
    return {name: f"{name}.{number}.safetensors" for name, number in numbers}


def per_client(folder: Path) -> Counter[str]:
    """How many files each client has."""
    return Counter(file.split(".")[0] for file in files(folder))


def last(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def equal(one: Any, other: Any) -> bool:
    """Whether two mappings hold the same tensors bit for bit."""
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)
