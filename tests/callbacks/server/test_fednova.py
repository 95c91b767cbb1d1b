"""FedNova and its normalizers on the toy problems, by hand."""

from typing import Any

import pytest
import torch
from lib.toy import Capture, GivenData, Linear, Quadratic, ToyData, close, train, trainer

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedNova, FedProx

PLAIN = (1.0 + 1, 1.0 + 1 + 1)  # ‖a₀‖₁ and ‖a₁‖₁ of two and three steps
MOMENTUM = (1 + 1.9, 1 + 1.9 + 2.71)  # β = 0.9: sums of 1, 1 + 0.9 and 1 + 0.9 + 0.81
PROXIMAL = (1 + 0.95, 1 + 0.95 + 0.9025)  # 1 - ημ = 0.95: sums of 1, 0.95 and 0.95²


@pytest.mark.parametrize(
    ("momentum", "mu", "normalizers", "by_hand"),
    [
        (0.0, 0.0, PLAIN, ((0.19, -0.36), (-1.314, 0.28525))),
        (0.9, 0.0, MOMENTUM, ((0.28, -0.54), (-2.556, 0.53725))),
        (0.0, 0.5, PROXIMAL, ((0.185, -0.35), (-1.2435, 0.271))),
    ],
)
def test_one_round_of_the_toy_problem(momentum: float, mu: float, normalizers: Any, by_hand: Any) -> None:
    """Average T's two updates per unit of local work ‖a_k‖₁, for plain SGD, for momentum, and with FedProx."""
    delta_0, delta_1 = torch.tensor(by_hand, dtype=torch.float64)
    a_0, a_1 = normalizers
    tau_eff = 1 / 4 * a_0 + 3 / 4 * a_1  # n = (1, 3)
    expected = tau_eff * (1 / 4 * delta_0 / a_0 + 3 / 4 * delta_1 / a_1)
    capture = Capture()
    assert close(train(FedProx(mu), FedNova(), capture, momentum=momentum), expected)
    assert close(capture.cohort.normalizers, normalizers)
    assert capture.cohort.num_steps.tolist() == [2, 3]


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize(
    "sgd", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "dampening": 0.3}], ids=str
)
def test_normalizer_is_the_weight_of_the_gradients_in_the_update(sgd: dict[str, Any], mu: float) -> None:
    """F = w·c has the gradient c wherever it is taken, so Δ = -η ‖a‖₁ c, whatever torch's optimizer does."""
    rows = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    capture = Capture()
    trainer(FedProx(mu), capture).fit(
        FederatedOrchestrator(Linear(2, lr=0.2, **sgd)), datamodule=GivenData(rows, steps=[3, 5])
    )
    norms = capture.cohort.normalizers[:, None]
    assert close(capture.cohort.deltas, -0.2 * norms * rows)


class Decaying(Quadratic):
    """Its learning rate is 0.1, then 0.05, then 0.025, or as told."""

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.factors = factors

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: [*self.factors, 0.0][step])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def test_normalizer_counts_in_units_of_the_first_step() -> None:
    """Factors 1, 1/2, 1/4: two steps weigh 1.5 first steps, three 1.75."""
    capture = Capture()
    trainer(FedNova(), capture).fit(FederatedOrchestrator(Decaying([1, 0.5, 0.25])), datamodule=ToyData())
    assert close(capture.cohort.normalizers, (1.5, 1.75))


def test_warm_up_from_zero_trains() -> None:
    """Factors 0, 1, 1: client 0 takes one real step to (0.1, -0.2), client 1 two to (-1.02, 0.195).

    FedNova over the steps' weights (1, 2): τ_eff = 0.25 + 1.5 = 1.75, w⁺ = 1.75·(0.1/4 - 3·1.02/8, -0.2/4 + 3·0.195/8).
    The unit of ‖a‖₁ cancels.
    """
    orchestrator = FederatedOrchestrator(Decaying([0, 1, 1]), on_bad_update="raise")
    trainer(FedNova()).fit(orchestrator, datamodule=ToyData())
    assert close(orchestrator.params, (1.75 * (0.025 - 0.3825), 1.75 * (-0.05 + 0.073125)))


class Idle(Quadratic):
    """Skips every batch of client 0, the one with A = (1, 2)."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch[0][0, 0] == 1 else super().training_step(batch, batch_idx)


def test_a_client_that_took_no_step_moves_nothing() -> None:
    """P = (1/4, 3/4), a = (0, 3): τ_eff = 2.25, d₀ = 0, w⁺ = 2.25·(3/4)·Δ₁/3 = 0.5625·(-1.314, 0.28525)."""
    orchestrator = FederatedOrchestrator(Idle())
    engine = trainer(FedNova())
    engine.fit(orchestrator, datamodule=ToyData())
    assert close(orchestrator.params, (-0.739125, 0.160453125))
    assert torch.isfinite(engine.callback_metrics["train/loss"])  # of the client that trained


def test_follows_the_weights_of_the_rule_before_it() -> None:
    """Uniform, τ = (2, 3), τ_eff = 2.5: 2.5·(Δ₀/4 + Δ₁/6)."""
    expected = (2.5 * (0.19 / 4 - 1.314 / 6), 2.5 * (-0.36 / 4 + 0.28525 / 6))
    assert close(train(FedAvg("uniform"), FedNova()), expected)
