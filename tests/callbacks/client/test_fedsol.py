"""FedSOL by hand, and beside the released code."""

from typing import Any

import torch
from lib.fifteen import Fifteen, Labelled
from lib.toy import Capture, close, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedSOL
from fl_lightning.callbacks.client.fedsol import strength


class OneWeight(LightningModule):
    """The logits w and 0 on every input, from w = 0, under SGD with the rate ½."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.w, torch.zeros_like(self.w)], dim=1).expand(len(x), 2)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        logits = self(batch[0])
        return {"loss": nn.functional.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(rule: FedSOL, steps: int, module: LightningModule, labels: list[int]) -> tuple[Tensor, float]:
    """The model of one client after a round, and the round's loss."""
    orchestrator, capture = FederatedOrchestrator(module, local_steps=steps), Capture()
    trainer(rule, capture).fit(orchestrator, datamodule=Labelled(labels))
    return orchestrator.params.clone(), float(capture.cohort.losses)


def test_two_steps_by_hand() -> None:
    """The loss ln(1 + exp(-w)) has the slope s(w) - 1, s the logistic function. The first step leads from 0 to ¼.

    There the distance from the teacher, which has w = 0, grows with w, and Λ = 1: the slope is taken at ¼ + ρ.
    """
    slope = torch.tensor(0.25 + 0.75, dtype=torch.float64).sigmoid() - 1
    model, loss = fit(FedSOL(rho=0.75, temperature=1.0), 2, OneWeight(), [0] * 4)
    assert close(model, [0.25 - 0.5 * slope], 1e-12)
    at_the_client = torch.tensor([0.0, -0.25], dtype=torch.float64).exp().log1p().mean()  # not where it looks
    assert abs(loss - at_the_client) < 1e-12


def test_the_released_code() -> None:
    """The fedsol_adaptive of Lee-Gihun/FedSOL, its ClientTrainer run apart in float64 on this batch: four steps, ρ = 1.

    That code divides by ‖g‖ + 1e-12.
    """
    expected = [-0.7983417439149373, -0.7580441186060223, -0.5998845921397739, -0.5219422158677223]
    expected += [-0.4389670874869922, -0.2882399535754682, -0.04346319405634973, 0.12108929818991486]
    expected += [0.12086177687128588, 0.27049308812591194, 0.338173272178116, 0.43109467916521477]
    expected += [0.8621431813814404, 0.6633249634550927, 0.7270561022966143]
    assert close(fit(FedSOL(rho=1.0, temperature=3.0), 4, Fifteen(), [0, 1, 2, 0])[0], expected, 1e-10)


def test_the_first_step_is_that_of_fedavg() -> None:
    """The client has not moved: Λ = 0, whatever rounding leaves of g."""

    def model(rho: float, steps: int) -> Tensor:
        return fit(FedSOL(rho), steps, Fifteen(), [0, 1, 2, 0])[0]

    assert torch.equal(model(5.0, 1), model(0.0, 1))
    assert not close(model(5.0, 2), model(0.0, 2), 1e-3)


def test_strength_is_finite_at_every_scale() -> None:
    moved = torch.tensor([[3.0, 1.0], [-4.0, 0.0]], dtype=torch.float64)
    for scale in (1e-9, 1.0, 1e9):
        assert close(strength(scale * moved), [[0.6, 1.0], [0.8, 0.0]], 1e-12)
    assert not strength(0 * moved).any()
