"""FedProto by hand: prototypes of two classes, and the term that they add to the loss."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lib.toy import Capture, close, trainer
from lib.two_numbers import served
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import (
    ConfigurationError,
    FederatedDataModule,
    FederatedOrchestrator,
    RoundRobinSampler,
    TrafficMonitor,
)
from fl_lightning.callbacks import FedProto


class Plain(LightningModule):
    """The features are the inputs, the logits zero; it learns at rate 0."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3).double()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)  # type: ignore[no-any-return]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        logits = self(batch[0])
        return {"loss": F.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Points(FederatedDataModule):
    """Client 0: (1, 0) and (3, 0) of class 0; client 1: (2, 0) of class 0 and (0, 2) of class 1. None is of class 2."""

    num_clients = 2

    def client_dataset(self, client: int) -> Dataset[Any]:
        points = [[[1.0, 0.0], [3.0, 0.0]], [[2.0, 0.0], [0.0, 2.0]]][client]
        return TensorDataset(torch.tensor(points).double(), torch.tensor([[0, 0], [0, 1]][client]))

    def class_counts(self) -> Tensor:
        return torch.tensor([[2, 0, 0], [1, 1, 0]])


def test_prototypes_and_their_term() -> None:
    """The means are (2, 0) and (0, 2). Client 0's points are 1 from theirs: (1 + 0) / 2 each, of which λ = 2 times the
    mean is 1; client 1's are at theirs. In round 1 there is no prototype.
    """
    rule, capture, traffic = FedProto(lam=2.0), Capture(), TrafficMonitor()
    orchestrator = FederatedOrchestrator(Plain(), on_bad_update="raise")
    trainer(rule, capture, traffic, rounds=2).fit(orchestrator, datamodule=Points(batch_size=2))
    assert close(rule.state["prototypes"][:2], [[2.0, 0.0], [0.0, 2.0]])
    assert rule.state["prototypes"][2].isnan().all()
    first, second = (cohort.losses.tolist() for cohort in capture.cohorts)
    assert first == pytest.approx([math.log(3)] * 2)
    assert second == pytest.approx([math.log(3) + 1.0, math.log(3)])
    up, down = 2 * 2 * (6 + 3) * 8, 2 * 6 * 8  # prototypes and counts in two rounds; prototypes in the second
    assert traffic.total == up + down


class InTurn(Points):
    """Client 0 in round 1, and client 1, at (4, 0) of class 0 and (0, 2) of class 1, in round 2."""

    def client_dataset(self, client: int) -> Dataset[Any]:
        points = [[[1.0, 0.0], [3.0, 0.0]], [[4.0, 0.0], [0.0, 2.0]]][client]
        return TensorDataset(torch.tensor(points).double(), torch.tensor([[0, 0], [0, 1]][client]))


def test_the_mean_is_over_the_whole_batch() -> None:
    """Class 1 has no prototype yet. (4, 0) is 2 from (2, 0): (4 + 0) / 2, over two examples 1, of which λ = 2 times."""
    capture, orchestrator = Capture(), FederatedOrchestrator(Plain(), on_bad_update="raise")
    data = InTurn(batch_size=2, participation=1, sampler=RoundRobinSampler())
    trainer(FedProto(lam=2.0), capture, rounds=2).fit(orchestrator, datamodule=data)
    losses = {cohort.clients: cohort.losses.tolist() for cohort in capture.cohorts}
    assert losses == {(0,): pytest.approx([math.log(3)]), (1,): pytest.approx([math.log(3) + 2.0])}


def test_needs_class_counts() -> None:
    with pytest.raises(ConfigurationError, match=r"GivenData.class_counts\(\) returns None: define it, or remove"):
        served(FedProto())
