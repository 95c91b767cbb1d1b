"""Gaussian noise in place of an update: how long it is, and what it depends on."""

import pytest
import torch
from lib.toy import Capture, GivenData, Linear, close, send, trainer
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import GaussianAttack


def noise(std: float = 2.0, seed: int = 0, rounds: int = 1, clients: int = 2) -> Tensor:
    """(K, 10000) what clients that all attack send in the last round."""
    data = GivenData(torch.ones(clients, 10_000, dtype=torch.float64))
    orchestrator, capture = FederatedOrchestrator(Linear(10_000), seed=seed), Capture()
    trainer(GaussianAttack(clients, std), capture, rounds=rounds).fit(orchestrator, datamodule=data)
    return capture.cohort.deltas


def test_moments() -> None:
    """10,000 draws of a fixed seed: the mean within four standard errors of 2/100, the spread within 4 · 2/√20,000."""
    first, second = noise()
    for sent in (first, second):
        assert float(sent.mean()) == pytest.approx(0, abs=0.08)
        assert float(sent.std()) == pytest.approx(2, abs=0.057)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.04


def test_depends_on_seed_round_and_client_alone() -> None:
    assert close(noise(std=1.0, clients=3)[:2], noise() / 2, 1e-12)
    assert not close(noise(seed=1), noise())
    assert not close(noise(rounds=2), noise())


def test_the_others_send_what_they_learned() -> None:
    updates = torch.tensor([[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5]], dtype=torch.float64)
    sent = send(updates, GaussianAttack(1))[1].cohort.deltas
    assert sorted((sent == updates).all(1).tolist()) == [False, True, True]
