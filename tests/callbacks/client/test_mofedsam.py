"""MoFedSAM beside the released code, and FedGAMMA as a chain: SCAFFOLD's correction of FedSAM's gradients."""

from typing import Any

import pytest
import torch
from lib.toy import ETA, A, B, InTurn, Quadratic, ToyData, close, train, trainer
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedCM, FedSAM, MoFedSAM, Scaffold

PART = ([0, 1], [0], [1], [0, 1])


def fit(*rules: Any, cohorts: Any = PART, at_once: int = 1) -> Tensor:
    """The model after some rounds of T, three local steps each."""
    orchestrator = FederatedOrchestrator(Quadratic(), local_steps=3, clients_at_once=at_once)
    data = ToyData(sampler=InTurn(*cohorts))
    trainer(FedAvg("uniform"), *rules, rounds=len(cohorts)).fit(orchestrator, datamodule=data)
    return orchestrator.params.clone()


def uphill(w: Tensor, k: int) -> Tensor:
    gradient = A[k] * (w - B[k])
    return A[k] * (w + 0.1 * gradient / gradient.norm() - B[k])


@pytest.mark.parametrize("at_once", [1, 2])
def test_two_rounds_of_one_client(at_once: int) -> None:
    """α = ¼: round 1 moves by three steps along ¼ of the gradient uphill; Δ is the mean of what it followed."""
    w = torch.zeros(2, dtype=torch.float64)
    for _ in range(3):
        w = w - ETA * 0.25 * uphill(w, 0)
    direction = -w / (3 * ETA)
    for _ in range(3):
        w = w - ETA * (0.25 * uphill(w, 0) + 0.75 * direction)
    assert close(fit(MoFedSAM(0.25, 0.1), cohorts=([0], [0]), at_once=at_once), w, 1e-12)


def test_the_released_code() -> None:
    """MoFedSAM of woodenchild95/FL-Simulator, run apart on T with α = ρ = 0.1; 1e-7 is added to norms there."""
    assert close(fit(MoFedSAM(0.1, 0.1)), (-0.5511317555601973, -0.17872496715757852), 1e-7)


def test_its_two_halves() -> None:
    assert torch.equal(train(MoFedSAM(1.0, 0.1), rounds=3), train(FedSAM(0.1), rounds=3))
    assert torch.equal(train(MoFedSAM(0.3, 0.0), rounds=3), train(FedCM(0.3), rounds=3))


@pytest.mark.parametrize("order", [1, -1])
def test_fedsam_and_scaffold_are_fedgamma(order: int) -> None:
    """FedGamma of woodenchild95/FL-Simulator, run apart on T with ρ = 0.1. The order of the two does not matter."""
    rules = [FedSAM(0.1), Scaffold("II")][::order]
    orchestrator = FederatedOrchestrator(Quadratic(), local_steps=3)
    trainer(*rules, rounds=4).fit(orchestrator, datamodule=ToyData(sampler=InTurn(*PART)))
    assert close(orchestrator.params, (-1.1337517252127967, -0.3611073208447744), 1e-7)
