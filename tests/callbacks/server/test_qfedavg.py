"""QFedAvg by hand, with losses that the clients send and with losses that they compute."""

import pytest
import torch
from toy import Capture, GivenData, Linear, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import QFedAvg

ROWS = torch.tensor([[-2.0, 0.0], [0.0, -4.0]]).double()


def step(q: float, losses: list[float], at_once: int = 1) -> list[float]:
    """One step of ½ on each client: updates (1, 0) and (0, 2) at the losses given."""
    orchestrator = FederatedOrchestrator(Linear(2, lr=0.5), clients_at_once=at_once)
    trainer(QFedAvg(q), Capture()).fit(orchestrator, datamodule=GivenData(ROWS, losses=losses))
    return list(orchestrator.params.tolist())


@pytest.mark.parametrize("at_once", [1, 2])
def test_by_losses(at_once: int) -> None:
    """F = (1, 2): numerators (2, 0) and 2 (0, 4); 1 · 4 + 2 · 1 = 6 and 1 · 16 + 2 · 2 = 20."""
    assert step(1.0, [1.0, 2.0], at_once) == pytest.approx([2 / 26, 8 / 26])


def test_without_losses() -> None:
    assert step(0.0, [1.0, 2.0]) == pytest.approx([0.5, 1.0])


def test_a_client_without_loss_counts_as_of_almost_none() -> None:
    assert step(2.0, [0.0, 2.0]) == pytest.approx([0.0, 16 / (4 * 16 + 8)])


def test_q() -> None:
    with pytest.raises(ConfigurationError, match="q must be"):
        QFedAvg(-1.0)
