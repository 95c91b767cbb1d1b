"""A run on the digits that can be stopped and resumed, and whether two checkpoints are the same."""

from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch import Callback
from torch import Tensor, nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import GradientHarmonization
from fl_lightning.datamodules import Digits, Dirichlet
from fl_lightning.models import ImageClassifier
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

ROUNDS = 6


def network() -> nn.Module:
    """Batch normalisation and dropout: buffers and local randomness."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10)
    )


def train(folder: Path, *callbacks: Callback, rounds: int = ROUNDS, resume: Path | None = None, **flags: Any) -> Path:
    """Train with half the clients a round and server momentum; the path of last.ckpt."""
    data = Digits(num_clients=8, partition=Dirichlet(0.5), participation=0.5, proxy_per_class=2, batch_size=64, seed=3)
    orchestrator = FederatedOrchestrator(
        ImageClassifier(network()), server_optimizer=lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.5), seed=3
    )
    trainer = Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        max_epochs=rounds,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[GradientHarmonization(), *callbacks, LastCheckpoint()],
        **flags,
    )
    trainer.fit(orchestrator, datamodule=data, ckpt_path=resume)
    return folder / "checkpoints" / "last.ckpt"


def tensors(tree: Any, path: str = "") -> dict[str, Tensor]:
    """All tensors of a nested structure, by path."""
    if isinstance(tree, Tensor):
        return {path: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return {name: value for key, sub in items for name, value in tensors(sub, f"{path}/{key}").items()}


def assert_same(one: Path, other: Path) -> None:
    """Model, buffers and server optimizer of two checkpoints are equal bit for bit."""
    parts = ("state_dict", "optimizer_states", "rounds_done")
    first, second = ({part: torch.load(p, weights_only=True)[part] for part in parts} for p in (one, other))
    assert first["rounds_done"] == second["rounds_done"]
    a, b = tensors(first), tensors(second)
    assert a.keys() == b.keys()
    assert a
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different
