"""What holds for every monitor: a run ends as without it, and nothing else that the run leaves behind changes."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.hand_made import Row
from lib.tiny_images import MONITORS, data
from lib.toy import trainer
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedAdam, FedSAM, GradientHarmonization, Scaffold
from fl_lightning.models import ImageClassifier


class Busy(ImageClassifier):
    """All that a measurement could disturb: batch normalisation, dropout, random numbers and a buffer that moves in
    steps of either kind, torchmetrics objects that share states or serve in training, too, and logs.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 3, 3, stride=2), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten()]
        super().__init__(nn.Sequential(*layers, nn.Linear(27, 3)), 3)
        self.shared = MetricCollection(
            {f"top{k}": MulticlassAccuracy(3, top_k=k) for k in (1, 3)}, prefix="val/shared_"
        )
        self.mean = MeanMetric()
        self.register_buffer("steps", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        outputs = super().training_step(batch, batch_idx)
        self.steps += 1
        self.mean(outputs["loss"].detach())
        self.log("train/mean", self.mean)
        self.log("train/draw", torch.rand(()))
        return outputs

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, targets = batch
        super().validation_step([images + torch.rand(()), targets], batch_idx)
        self.shared.update(self(images), targets)
        self.mean.update(self.steps)
        self.log("val/mean", self.mean)
        self.steps += self.trainer.training

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.shared.compute())
        self.shared.reset()


def end(*monitors: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """What two rounds leave behind, and what they log."""
    torch.manual_seed(5)
    orchestrator, logged = FederatedOrchestrator(Busy(), on_bad_update="raise"), dict[str, float]()
    rules = [FedSAM(), Scaffold(), GradientHarmonization(), FedAdam()]
    run = trainer(*monitors, *rules, rounds=2, logger=Row(logged))
    run.fit(orchestrator, datamodule=data())
    left = {
        "model": {name: value.tolist() for name, value in orchestrator.state_dict().items()},
        "modes": [part.training for part in orchestrator.modules()],
        "gradients": [parameter.grad for parameter in orchestrator.parameters()],
        "generators": (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()),  # type: ignore[index]
        "optimizer": str(run.optimizers[0].state_dict()),
        "states": {f"{type(rule).__name__}/{name}": rule.state[name].tolist() for rule in rules for name in rule.state},
    }
    return left, logged


@cache
def plain() -> tuple[dict[str, Any], dict[str, float]]:
    return end()


@pytest.mark.parametrize("name", sorted(MONITORS))
def test_a_monitor_changes_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, buffers, modes, generators, optimizer, the rules' states and all that is logged without it, to the bit."""
    expected, before = plain()
    monkeypatch.chdir(tmp_path)  # where a run without a run folder leaves its files
    left, logged = end(MONITORS[name]())
    for part in expected:
        assert left[part] == expected[part], part
    assert {"train/mean", "train/draw", "val/mean", "val/shared_top1"} <= before.keys()
    assert {metric: logged[metric] for metric in before} == before
    if name != "AggregationError":  # the module has no adapters
        assert len(logged) > len(before) or [*tmp_path.rglob("*.*")], "the monitor did nothing"
