"""FedADMM by hand."""

from functools import partial

import pytest
import torch
from lib.toy import Capture, GivenData, Linear, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedADMM


@pytest.mark.parametrize("at_once", [1, 2])
def test_two_rounds(at_once: int) -> None:
    """ρ = ½, one step along -2 and a server that takes a quarter of what comes.

    Round 1: from 0 to 2, so y = ½ · 2 = 1, and 2 + 1 / ½ = 4 is sent. Round 2, at w = 1: the client starts at its 2,
    with the gradient -2 + 1 + ½ (2 - 1) = -½, to 2.5; y = 1 + ½ · 1.5, and (2.5 - 2) + 0.75 / ½ = 2 is sent.
    """
    rule, capture = FedADMM(0.5), Capture()
    slow = partial(torch.optim.SGD, lr=0.25)
    orchestrator = FederatedOrchestrator(Linear(1), clients_at_once=at_once, server_optimizer=slow)
    trainer(rule, capture, rounds=2).fit(orchestrator, datamodule=GivenData(torch.full((2, 1), -2.0).double()))
    assert [cohort.deltas.tolist() for cohort in capture.cohorts] == [[[4.0], [4.0]], [[2.0], [2.0]]]
    assert {name: float(rule.state[name]) for name in ("model/1", "dual/1")} == {"model/1": 2.5, "dual/1": 1.75}


def test_rho() -> None:
    with pytest.raises(ConfigurationError, match="rho must be positive"):
        FedADMM(0.0)
