"""ExampleDP: its gradients by hand, FedAvg's where it does nothing, what it costs, and what it refuses."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from hand_made import serve
from lightning.pytorch import LightningModule
from rules import TinyClassifier, TinyData
from torch import Tensor, nn
from toy import trainer

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import ExampleDP, FedBN, FedDecorr, FedProx, FedSAM, FocalLoss, Scaffold
from fl_lightning.callbacks.privacy.accountant import Accountant

NONE = {"clip": 1e9, "noise_multiplier": 1e-30}


class Sum(LightningModule):
    """The mean of w·c over a batch of rows c, one step of SGD(1) from zero: minus the mean gradient."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = (batch[0] @ self.w).mean()
        self.log("train/sum", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Rows(FederatedDataModule):
    """One client with some rows, in one batch."""

    num_clients = 1

    def __init__(self, rows: Tensor) -> None:
        super().__init__(batch_size=len(rows))
        self.rows = rows

    def client_dataset(self, client: int) -> Any:
        return torch.utils.data.TensorDataset(self.rows)


def step(rows: Any, **arguments: Any) -> tuple[Tensor, Any]:
    given = torch.as_tensor(rows, dtype=torch.float64)
    orchestrator = FederatedOrchestrator(Sum(given.shape[1]))
    run = trainer(ExampleDP(**arguments))
    run.fit(orchestrator, datamodule=Rows(given))
    return orchestrator.params.clone(), run


def test_each_gradient_is_clipped() -> None:
    """(3, 4)/5, (0, 0.5) and (0, -8)/8 over three."""
    moved, run = step([[3.0, 4.0], [0.0, 0.5], [0.0, -8.0]], noise_multiplier=1e-30)
    assert moved.tolist() == pytest.approx([-0.6 / 3, -0.3 / 3])
    assert float(run.callback_metrics["train/sum"]) == 0.0, "what the module logs is logged once, at the start"


def test_the_noise() -> None:
    """Z S / B = 3 · 2 / 4."""
    moved, _ = step(torch.zeros(4, 200_000), clip=2.0, noise_multiplier=3.0)
    assert float(moved.std()) == pytest.approx(1.5, abs=4 * 1.5 / math.sqrt(400_000))


class Net(LightningModule):
    """A classifier with dropout in which nothing mixes examples; its outputs are a dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def training_step(self, batch: list[Tensor]) -> dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(self.net(batch[0]), batch[1])}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def fit(module: Any, *rules: Any, rounds: int = 2, **settings: Any) -> tuple[Tensor, Any]:
    orchestrator, run = FederatedOrchestrator(module, **settings), trainer(*rules, rounds=rounds)
    run.fit(orchestrator, datamodule=TinyData(batch_size=4))
    return orchestrator.params.clone(), run


@pytest.mark.parametrize("beside", [[], [FedProx]])
def test_without_clip_and_noise_it_is_fedavg(beside: list[Any]) -> None:
    """To rounding, also beside a rule that corrects the gradient."""
    rules = [make(0.1) for make in beside]
    plain, other = fit(Net(), *rules)[0], fit(Net(), ExampleDP(**NONE), *rules)[0]
    assert float((plain - other).abs().max()) < 1e-12


PASSES: list[Any] = [({"local_epochs": 3}, 6), ({"local_steps": 2}, 4), ({"local_epochs": 0.5}, 2)]


@pytest.mark.parametrize(("epochs", "passes"), PASSES)
def test_epsilon_counts_passes(epochs: dict[str, Any], passes: int) -> None:
    """The smallest client has 4 examples, one batch: two steps are two passes of it. As z = 10 in units of 2 S."""
    run = fit(Net(), ExampleDP(noise_multiplier=20.0), **epochs)[1]
    expected = Accountant("fixed").epsilon(20.0, passes, 1e-5)
    assert float(run.callback_metrics["privacy/epsilon"]) == pytest.approx(expected)


def test_a_part_of_a_pass_counts_as_one() -> None:
    """Clients of two and of four batches of one example, after 1, 2, 3 and 5 steps; the first two have two rounds."""
    rule, updates = ExampleDP(), torch.zeros(4, 2)
    serve(updates, rule, samples=[2, 2, 2, 4], steps=[1, 2, 3, 5], cohorts=[[0, 1, 2, 3], [0, 1]])
    assert rule.state["sums"].tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (FocalLoss, "ExampleDP and FocalLoss do not go together"),
        (FedSAM, "ExampleDP and FedSAM do not go together"),
        (FedDecorr, "FedDecorr would do nothing: keep one"),
        (partial(Scaffold, "I"), "clients train by ExampleDP: use option II"),
    ],
)
def test_refused_beside_it(rule: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fit(Net(), ExampleDP(), rule())


def test_batch_normalisation() -> None:
    """It mixes examples even where it stays with the clients."""
    with pytest.raises(ConfigurationError, match=r"net\.0 is BatchNorm, which mixes the examples of a batch"):
        fit(TinyClassifier(), ExampleDP(), FedBN())
