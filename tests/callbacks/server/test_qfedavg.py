"""q-FedAvg by hand."""

import pytest
import torch
from lib.hand_made import apply
from lib.toy import GivenData, Linear, close, send, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import QFedAvg

UPDATES = [[1.0, 0.0], [0.0, 2.0]]


def test_two_clients() -> None:
    """Q = 1, η = ½, F = (1, 2): L Δ = (2, 0) and (0, 4), h = 4 + 2 and 16 + 4, so (2, 0) + 2 (0, 4) over 26."""
    assert close(send(UPDATES, QFedAvg(1.0), lr=0.5, losses=[1.0, 2.0])[0], [2 / 26, 8 / 26])


def test_the_loss_is_that_at_the_model_that_a_client_starts_from() -> None:
    """In round 2 of w·c + l, at w = (2, 8)/26: F = 1 - 2 · 2/26 = 22/26 and 2 - 4 · 8/26 = 20/26."""
    rows = torch.tensor([[-2.0, 0.0], [0.0, -4.0]]).double()
    for at_once in (1, 2):
        orchestrator = FederatedOrchestrator(Linear(2, 0.5), clients_at_once=at_once)
        trainer(QFedAvg(1.0), rounds=2).fit(orchestrator, datamodule=GivenData(rows, losses=[1.0, 2.0]))
        total = 4 + 2 * 22 / 26 + 16 + 2 * 20 / 26
        step = [2 * 22 / 26 / total, 4 * 20 / 26 / total]
        assert close(orchestrator.params, [2 / 26 + step[0], 8 / 26 + step[1]])


def test_without_fairness_it_is_the_uniform_mean() -> None:
    assert close(apply(UPDATES, QFedAvg(0.0), samples=[1, 9], losses=[1.0, 5.0])[0], [0.5, 1.0])


def test_q() -> None:
    with pytest.raises(ConfigurationError, match="q must be at least 0"):
        QFedAvg(-1.0)
