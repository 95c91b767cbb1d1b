"""ImbalanceMonitor on two clients with given logits, by hand."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lib.hand_made import Row
from lib.toy import trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FedSAM, FocalLoss, ImbalanceMonitor


class Certain(LightningModule):
    """The logits are the inputs plus w, which stays zero: it learns at rate 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        logits = batch[0] + self.w
        return {"loss": F.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class OnlyLoss(Certain):
    """Returns the loss alone."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx)["loss"]


class Skewed(FederatedDataModule):
    """Client 0 has three examples of class 0 and one of class 1, whose loss is ln 4; client 1 has two of each class."""

    num_clients = 2

    def client_dataset(self, client: int) -> Dataset[Any]:
        targets = torch.tensor([0, 0, 0, 1] if client == 0 else [0, 0, 1, 1])
        logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [math.log(3), 0.0]])
        return TensorDataset(logits, targets)

    def class_counts(self) -> Tensor:
        return torch.tensor([[3, 1], [2, 2]])


class Unlabelled(Skewed):
    """Does not tell its classes."""

    class_counts = FederatedDataModule.class_counts


def logged(
    *rules: Any,
    module: LightningModule | None = None,
    data: type[FederatedDataModule] = Skewed,
    batch_size: int = 4,
    **settings: Any,
) -> Any:
    found: dict[str, float] = {}
    run = trainer(*rules, logger=Row(found))
    client = FederatedOrchestrator(module or Certain(), on_bad_update="raise", **settings)
    run.fit(client, datamodule=data(batch_size=batch_size))
    return {name: value for name, value in found.items() if name.startswith("imbalance/")}


@pytest.mark.parametrize("rules", [[], [FedSAM(rho=10.0)]])
def test_loss_of_frequent_and_rare_classes(rules: Any) -> None:
    """On client 0 ln 2 and ln 4: the rare class has 2 of 5 parts, by 1 example of 4.

    On client 1 no class is rare, and the four losses are ln 2 and once ln 4: 5/4 ln 2 in the mean.
    """
    expected = {
        "imbalance/frequent": 9 / 8 * math.log(2),
        "imbalance/rare": math.log(4),
        "imbalance/frequent_in/1": 9 / 8 * math.log(2),
        "imbalance/rare_in/1": math.log(4),
        "imbalance/loss": 0.4 / 2,
        "imbalance/loss_in/1": 0.4 / 2,
        "imbalance/examples": 0.25 / 2,
    }
    assert logged(ImbalanceMonitor(), *rules) == pytest.approx(expected)


def test_share_of_the_focal_loss() -> None:
    """With γ = 2 client 0 has ¼ ln 2 for each frequent example and 9/16 ln 4 for the rare one: 3 of 5 parts."""
    found = logged(ImbalanceMonitor(), FocalLoss(gamma=2.0))
    assert found["imbalance/focal"] == pytest.approx(0.6 / 2)
    assert found["imbalance/loss"] == pytest.approx(0.4 / 2), "of the cross-entropy, whatever the client trains on"


def test_batches_count_by_the_examples_of_the_classes() -> None:
    """In batches of 1 every example of a class counts the same; the rare class has all or nothing of a batch's loss."""
    found = logged(ImbalanceMonitor(), batch_size=1)
    assert found["imbalance/frequent"] == pytest.approx(9 / 8 * math.log(2))
    assert found["imbalance/rare"] == pytest.approx(math.log(4))
    assert found["imbalance/loss"] == pytest.approx(0.25 / 2)


class Falling(Certain):
    """Its step moves w by ln 2 towards class 0, whatever the gradient."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def on_after_backward(self) -> None:
        assert self.w.grad is not None
        self.w.grad.copy_(torch.tensor([-math.log(2), 0.0]))


def test_each_local_epoch() -> None:
    """In the second epoch the logits of class 0 are ln 2 higher: its examples lose ln 1.5, the rare one ln 7."""
    found = logged(ImbalanceMonitor(), module=Falling(), local_epochs=2)
    assert found["imbalance/rare_in/1"] == pytest.approx(math.log(4))
    assert found["imbalance/rare_in/2"] == pytest.approx(math.log(7))
    assert found["imbalance/rare"] == pytest.approx(math.log(28) / 2)
    clients = [3 * [math.log(1.5)], [math.log(1.5), math.log(1.5), math.log(3), math.log(7)]]
    assert found["imbalance/frequent_in/2"] == pytest.approx(sum(sum(each) / len(each) for each in clients) / 2)
    rare = math.log(7) / (math.log(7) + 3 * math.log(1.5))
    assert found["imbalance/loss_in/2"] == pytest.approx(rare / 2)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"data": Unlabelled}, r"Unlabelled.class_counts\(\) returns None: define it, or remove ImbalanceMonitor"),
        ({"module": OnlyLoss()}, "needs OnlyLoss.training_step to return a dict with .*, got Tensor"),
    ],
)
def test_needs_classes_and_logits(settings: Any, line: str) -> None:
    with pytest.raises(ConfigurationError, match=line):
        logged(ImbalanceMonitor(), **settings)
