"""FedLESAM by hand: gradients at a point along what the global model has moved."""

import pytest
import torch
from lib.toy import ETA, SAMPLES, STEPS, A, B, InTurn, Quadratic, ToyData, close, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedLESAM


def after(w: torch.Tensor, client: int, ahead: torch.Tensor) -> torch.Tensor:
    for _ in range(STEPS[client]):
        w = w - ETA * A[client] * (w + ahead - B[client])
    return w


@pytest.mark.parametrize("at_once", [1, 2])
def test_gradients_are_taken_along_the_last_move(at_once: int) -> None:
    """Round 1 is FedAvg's; in round 2 both clients look ρ = ½ back along the move of the global model."""
    shares, zero = torch.tensor(SAMPLES).double() / sum(SAMPLES), torch.zeros(2, dtype=torch.float64)
    first = sum(shares[k] * after(zero, k, zero) for k in (0, 1))
    back = -0.5 * first / torch.linalg.vector_norm(first)
    second = sum(shares[k] * after(first, k, back) for k in (0, 1))
    orchestrator = FederatedOrchestrator(Quadratic(), clients_at_once=at_once)
    trainer(FedLESAM(0.5), rounds=2).fit(orchestrator, datamodule=ToyData())
    assert close(orchestrator.params, second)


def test_the_move_is_since_a_client_last_took_part() -> None:
    """Client 1 sees the model of round 1 in round 1 and in round 3: it looks back along two rounds of client 0."""
    rule, orchestrator = FedLESAM(0.5), FederatedOrchestrator(Quadratic())
    trainer(rule, rounds=3).fit(orchestrator, datamodule=ToyData(sampler=InTurn([1], [0], [1])))
    zero = torch.zeros(2, dtype=torch.float64)
    second = after(one := after(zero, 1, zero), 0, zero)
    back = -0.5 * second / torch.linalg.vector_norm(second)
    assert close(orchestrator.params, after(second, 1, back))
    assert close(rule.state["model/0"], one)


def test_rho() -> None:
    with pytest.raises(ConfigurationError, match="rho must be at least 0"):
        FedLESAM(-0.1)
