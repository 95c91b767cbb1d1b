"""FedCM by hand."""

import pytest
import torch
from lib.toy import Capture, GivenData, Linear, close, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedCM


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_direction_of_the_last_round(at_once: int) -> None:
    """Two steps of ½ along ¼ g: (2, 0) and (0, 4) for g = (-8, 0) and (0, -16). Their mean (1, 2) is Δ = (-1, -2).

    In the second round a step follows ¼ g + ¾ Δ: clients end at (2, 0) + (¾, 1.5) and (0, 4) + (¾, 1.5).
    """
    rule, capture = FedCM(0.25), Capture()
    data = GivenData(torch.tensor([[-8.0, 0.0], [0.0, -16.0]]).double(), samples=[2, 2], steps=[2, 2])
    orchestrator = FederatedOrchestrator(Linear(2, lr=0.5), clients_at_once=at_once)
    trainer(rule, capture, rounds=2).fit(orchestrator, datamodule=data)
    assert close(capture.cohorts[0].deltas, [[2.0, 0.0], [0.0, 4.0]])
    assert close(capture.cohorts[1].deltas, [[2.75, 1.5], [0.75, 5.5]])


def test_alpha() -> None:
    with pytest.raises(ConfigurationError, match=r"alpha must be in \(0, 1\], got 0"):
        FedCM(0.0)
