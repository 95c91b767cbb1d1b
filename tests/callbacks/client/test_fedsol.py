"""FedSOL by hand, and beside the released code."""

from typing import Any

import torch
from lib.toy import Capture, close, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FedSOL
from fl_lightning.callbacks.client.fedsol import strength

INPUTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]]).double()


class Small(LightningModule):
    """A network of fifteen numbers, or one number w that is the first of two logits."""

    def __init__(self, single: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 3)).double()
        if single:
            self.net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ZeroPad1d((0, 1))).double()
        count = sum(parameter.numel() for parameter in self.parameters())
        start = torch.linspace(-1, 1, count, dtype=torch.float64).sin()
        nn.utils.vector_to_parameters(0 * start if single else start, self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        logits = self(batch[0])
        return {"loss": nn.functional.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class OneBatch(FederatedDataModule):
    """One client, whose examples are one batch."""

    num_clients = 1

    def __init__(self, x: Tensor, y: list[int]) -> None:
        super().__init__(batch_size=len(y))
        self.examples = TensorDataset(x, torch.tensor(y))

    def client_dataset(self, client: int) -> Dataset[Any]:
        return self.examples


def fit(rule: FedSOL, steps: int, single: bool = False) -> tuple[Tensor, float]:
    """The model after a round, and the round's loss."""
    x, y = (torch.ones(1, 1).double(), [0]) if single else (INPUTS, [0, 1, 2, 0])
    orchestrator, capture = FederatedOrchestrator(Small(single), local_steps=steps), Capture()
    trainer(rule, capture).fit(orchestrator, datamodule=OneBatch(x, y))
    return orchestrator.params.clone(), float(capture.cohort.losses)


def test_two_steps_by_hand() -> None:
    """The loss ln(1 + exp(-w)) has the slope s(w) - 1, s the logistic function. The first step leads from 0 to ¼.

    There the distance from the teacher, which has w = 0, grows with w, and Λ = 1: the slope is taken at ¼ + ρ.
    """
    slope = torch.tensor(0.25 + 0.75).double().sigmoid() - 1
    model, loss = fit(FedSOL(rho=0.75, temperature=1.0), steps=2, single=True)
    assert close(model, [0.25 - 0.5 * slope], 1e-12)
    at_the_client = torch.tensor([0.0, -0.25]).double().exp().log1p().mean()  # where it stands, not where it looks
    assert abs(loss - at_the_client) < 1e-12


def test_the_released_code() -> None:
    """fedsol_adaptive's ClientTrainer of Lee-Gihun/FedSOL, run apart in float64 on this batch: four steps, ρ = 1."""
    expected = [-0.7983417439149373, -0.7580441186060223, -0.5998845921397739, -0.5219422158677223]
    expected += [-0.4389670874869922, -0.2882399535754682, -0.04346319405634973, 0.12108929818991486]
    expected += [0.12086177687128588, 0.27049308812591194, 0.338173272178116, 0.43109467916521477]
    expected += [0.8621431813814404, 0.6633249634550927, 0.7270561022966143]
    assert close(fit(FedSOL(rho=1.0, temperature=3.0), steps=4)[0], expected, 1e-10)


def test_the_first_step_is_that_of_fedavg() -> None:
    """The client has not moved: Λ = 0, whatever rounding leaves of g."""
    assert torch.equal(fit(FedSOL(5.0), steps=1)[0], fit(FedSOL(0.0), steps=1)[0])
    assert not close(fit(FedSOL(5.0), steps=2)[0], fit(FedSOL(0.0), steps=2)[0], 1e-3)


def test_strength_is_finite_at_every_scale() -> None:
    moved = torch.tensor([[3.0, 1.0], [-4.0, 0.0]]).double()
    for scale in (1e-9, 1.0, 1e9):
        assert close(strength(scale * moved), [[0.6, 1.0], [0.8, 0.0]], 1e-12)
    assert not strength(0 * moved).any()
