"""FedInit by hand, and beside the released code."""

import pytest
import torch
from lib.toy import Capture, GivenData, InTurn, Linear, Quadratic, ToyData, close, train, trainer

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedInit

ROWS = torch.tensor([[-1.0], [-3.0]]).double()  # steps of 1 and 3


@pytest.mark.parametrize("at_once", [1, 2])
def test_clients_start_beyond_the_global_model(at_once: int) -> None:
    """β = ½: in round 1 clients end at 1 and 3, w = 2. In round 2 they start at 2 + ½ and 2 - ½ and end at 3.5, 4.5.

    From w = 2, these are the updates 1.5 and 2.5, so that w = 4, as in FedAvg. In round 3 they start at 4.25 and 3.75.
    """
    rule, capture = FedInit(0.5), Capture()
    orchestrator = FederatedOrchestrator(Linear(1), clients_at_once=at_once)
    trainer(rule, capture, rounds=3).fit(orchestrator, datamodule=GivenData(ROWS))
    assert [cohort.deltas.flatten().tolist() for cohort in capture.cohorts] == [[1.0, 3.0], [1.5, 2.5], [1.25, 2.75]]
    assert {name: float(value) for name, value in rule.state.items()} == {"model/0": 5.25, "model/1": 6.75}


def test_the_last_model_is_that_of_the_last_participation() -> None:
    """β = ½, one client a round: 0 ends at 1, 1 at 4; 0 starts at 4 + ½ (4 - 1) and ends at 6.5, the average of one."""
    orchestrator = FederatedOrchestrator(Linear(1))
    trainer(FedInit(0.5), rounds=3).fit(orchestrator, datamodule=GivenData(ROWS, sampler=InTurn([0], [1], [0])))
    assert orchestrator.params.tolist() == [6.5]


def test_the_released_code() -> None:
    """FedAvg with use_RI and β = 0.3 of woodenchild95/FL-Simulator, run apart on T.

    Three rounds of both clients, with three local steps each.
    """
    expected = (-1.0081233413500001, -0.24703195709704592)
    assert close(train(FedAvg("uniform"), FedInit(0.3), rounds=3, local_steps=3), expected, 1e-12)


def test_serves_clients_by_the_global_model() -> None:
    orchestrator = FederatedOrchestrator(Quadratic())
    trainer(FedInit(0.5), rounds=2).fit(orchestrator, datamodule=ToyData())
    assert orchestrator.personal_model is None


def test_without_its_share_it_is_fedavg() -> None:
    assert torch.equal(train(FedInit(0.0), rounds=3), train(rounds=3))
