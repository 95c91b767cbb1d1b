"""IFCA: clients find the model that fits them, and nobody else moves it."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import GivenData, close, trainer
from lib.two_devices import on_two_devices
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import ClientResult, Cohort, ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import IFCA, FedBN
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

TARGETS = torch.tensor([[5.0, 0.0], [7.0, 0.0], [0.0, -6.0], [0.0, -4.0]]).double()


class Point(nn.Module):
    """Two numbers, at first (1, 0), and after a reset (0, -1)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 0.0], dtype=torch.float64))

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.w.copy_(torch.tensor([0.0, -1.0]))


class Near(LightningModule):
    """Half of the squared distance to a client's target."""

    def __init__(self) -> None:
        super().__init__()
        self.point = Point()

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return (self.point.w - batch[0]).square().sum(1).mean() / 2

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


@pytest.mark.parametrize("at_once", [1, 4])
def test_two_groups(at_once: int) -> None:
    """Half of the way to (5 + 3 · 7)/4 by n = (1, 3), and to (-6 - 4)/2."""
    rule, orchestrator = IFCA(2), FederatedOrchestrator(Near(), clients_at_once=at_once)
    trainer(rule, rounds=1).fit(orchestrator, datamodule=GivenData(TARGETS, samples=[1, 3, 1, 1]))
    one = 0.5 * (1 + (5 + 3 * 7) / 4)
    assert close(rule.state["models"], [[one, 0.0], [0.0, 0.5 * (-1 - 5)]])


def test_a_model_that_there_is_not_moves_none() -> None:
    """Of updates 1, 2 and 4, by clients that say models 0, 7 and -1, the first model moves by 1 alone."""
    results = []
    for client, cluster in enumerate([0, 7, -1]):
        vectors = {"cluster": torch.tensor(cluster)}
        results.append(ClientResult(client, num_samples=1, num_steps=1, loss=0.0, normalizer=1.0, vectors=vectors))
    deltas = torch.tensor([[1.0], [2.0], [4.0]])
    cohort = Cohort.collect(round=1, anchor=torch.zeros(1), deltas=deltas, results=results)
    rule: Any = IFCA(2)
    rule.state = {"models": torch.zeros(2, 1)}
    rule.update(None, cohort, cohort.update)
    assert rule.state["models"].tolist() == [[1.0], [0.0]]


def test_each_client_is_served_by_its_model(tmp_path: Path) -> None:
    rule, orchestrator, served = IFCA(2), FederatedOrchestrator(Near()), []

    class Asks(LastCheckpoint):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            served.extend(pl_module.personal_model(client)[0].clone() for client in range(4))

    run = trainer(rule, Asks(), rounds=20, default_root_dir=tmp_path, enable_checkpointing=True)
    run.fit(orchestrator, datamodule=GivenData(TARGETS))
    assert close(torch.stack(served), [[6.0, 0.0]] * 2 + [[0.0, -5.0]] * 2, 1e-4)


def fit(folder: Path, clusters: int, rounds: int = 4, resume: Any = None, **flags: Any) -> Any:
    rule, orchestrator = IFCA(clusters), FederatedOrchestrator(TinyClassifier())
    run = trainer(
        rule, FedBN(), LastCheckpoint(), rounds=rounds, default_root_dir=folder, enable_checkpointing=True, **flags
    )
    run.fit(orchestrator, datamodule=TinyData(batch_size=4, participation=4), ckpt_path=resume)
    return torch.stack([orchestrator.params, *rule.state["models"]])


def test_resumed_and_on_two_devices(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", 3)
    assert len({tuple(model.tolist()) for model in whole}) == 4
    fit(tmp_path / "part", 3, rounds=2)
    assert torch.equal(whole, fit(tmp_path / "rest", 3, resume=tmp_path / "part" / "checkpoints" / "last.ckpt"))
    found = on_two_devices(tmp_path, {"ifca": partial(fit, tmp_path / "two", 3)})["ifca"]
    assert all(torch.equal(whole, each) for each in found), found


def test_one_cluster_is_fedavg(tmp_path: Path) -> None:
    both = fit(tmp_path, 1)
    orchestrator = FederatedOrchestrator(TinyClassifier())
    trainer(FedBN(), rounds=4).fit(orchestrator, datamodule=TinyData(batch_size=4, participation=4))
    assert close(both[0], orchestrator.params, 1e-12)
    assert close(both[1], orchestrator.params, 1e-12)


def test_clusters() -> None:
    with pytest.raises(ConfigurationError, match="clusters must be at least 1"):
        IFCA(0)
