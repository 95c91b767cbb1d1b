"""A fixed shrinking factor."""

import math

import pytest
import torch
from toy import UPDATES, GivenData, Head, ProxyData, close, send, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedLAW, FedNova, GlobalWeightShrinking

W0 = [4.0, 0.0, -2.0, 1.0]
UPDATE = torch.tensor([[2.0, 0.0, 0.0, 0.0], [0.0, 4.0, 2.0, 0.0]], dtype=torch.float64)


def test_shrinks_the_new_model() -> None:
    """With n = (1, 3), w + Σ λ_k Δ_k = (4, 0, -2, 1) + (0.5, 3, 1.5, 0) = (4.5, 3, -0.5, 1); γ = 0.5 halves it."""
    orchestrator = FederatedOrchestrator(Head(W0))
    trainer(GlobalWeightShrinking(0.5)).fit(orchestrator, datamodule=GivenData(-UPDATE, samples=[1, 3]))
    assert close(orchestrator.params, [2.25, 1.5, -0.25, 0.5])


def test_every_round() -> None:
    """From w = 0 with one update of 1: γ, then γ (γ + 1)."""
    orchestrator = FederatedOrchestrator(Head())
    data = GivenData(torch.full((1, 4), -1.0, dtype=torch.float64))
    trainer(GlobalWeightShrinking(0.9), rounds=2).fit(orchestrator, datamodule=data)
    assert close(orchestrator.params, [0.9 * 1.9] * 4)


def test_zero_updates_leave_the_shrunk_model() -> None:
    orchestrator = FederatedOrchestrator(Head(W0))
    data = GivenData(torch.zeros(2, 4, dtype=torch.float64))
    trainer(GlobalWeightShrinking(0.75)).fit(orchestrator, datamodule=data)
    assert close(orchestrator.params, [3.0, 0.0, -1.5, 0.75])


def test_one_is_fedavg_bit_for_bit() -> None:
    updates = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(send(updates, GlobalWeightShrinking(1.0))[0], send(updates)[0])
    assert not torch.equal(send(updates, GlobalWeightShrinking(0.99))[0], send(updates)[0])


def test_goes_with_rules_that_weigh_or_correct() -> None:
    """FedNova with τ = (1, 1, 2): τ_eff = 4/3, updates times (4/3, 4/3, 2/3): (2/3, 0) / 3 on average, halved."""
    moved, _ = send(UPDATES, FedAvg("uniform"), FedNova(), GlobalWeightShrinking(0.5), steps=[1, 1, 2])
    assert close(moved, [(8 / 3 - 4 / 3 - 2 / 3) / 6, 0.0])
    again, _ = send(UPDATES, GlobalWeightShrinking(0.5), FedAvg("uniform"), FedNova(), steps=[1, 1, 2])
    assert torch.equal(moved, again)


def test_two_factors_are_refused() -> None:
    both = "GlobalWeightShrinking and FedLAW do not go together: both settle the shrinking factor; keep one"
    with pytest.raises(ConfigurationError, match=both):
        trainer(GlobalWeightShrinking(0.9), FedLAW()).fit(FederatedOrchestrator(Head()), datamodule=ProxyData(-UPDATE))


@pytest.mark.parametrize("gamma", [0.0, -0.5, math.nan, math.inf])
def test_refuses_what_is_no_factor(gamma: float) -> None:
    with pytest.raises(ConfigurationError, match=f"^gamma must be positive and finite, got {gamma}$"):
        GlobalWeightShrinking(gamma)
