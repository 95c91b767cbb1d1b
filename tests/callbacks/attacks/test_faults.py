"""Faults: which clients fail, when and how, and that runs and rules cope."""

from typing import Any

import pytest
import torch
from lib.rules import CLIENT_RULES, PERSONAL, SERVER_RULES, TinyClassifier, TinyData
from lib.toy import Capture, GivenData, Linear, close, trainer

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FaultInjection

QUICK = ("FedFV", "FedLAW, attentive", "FedBE", "CentredClipping")  # of those that keep or ask for clients' values
MARKED = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SERVER_RULES]


def clients_by_round(*callbacks: Any, **settings: Any) -> list[tuple[int, ...]]:
    """The clients that count in each of three rounds of four clients that send 1."""
    orchestrator, capture = FederatedOrchestrator(Linear(1), **settings), Capture()
    data = GivenData(torch.full((4, 1), -1.0, dtype=torch.float64))
    trainer(*callbacks, capture, rounds=3).fit(orchestrator, datamodule=data)
    assert close(orchestrator.params, [3.0])
    return [cohort.clients for cohort in capture.cohorts]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "ClientFailure: injected fault"),
        ("nan", "its update is not finite"),
        ("inf", "its update is not finite"),
        ("huge", r"the norm of its update is 1e\+38"),
    ],
)
def test_given_clients_fail_in_given_rounds(fault: Any, reason: str) -> None:
    with pytest.warns(UserWarning, match=f"round 2: client 3 is left out: {reason}"):
        found = clients_by_round(FaultInjection(fault, clients=[1, 3], rounds=[2, 9]), max_update_norm=10)
    assert found == [(0, 1, 2, 3), (0, 2), (0, 1, 2, 3)]


@pytest.mark.filterwarnings("ignore:.*left out")
def test_by_default_all_rounds_and_all_clients() -> None:
    assert clients_by_round(FaultInjection("nan", clients=[0])) == [(1, 2, 3)] * 3
    with pytest.raises(RuntimeError, match="so is every other one"):
        clients_by_round(FaultInjection("nan"))


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("name", [*MARKED, *CLIENT_RULES, *PERSONAL])
def test_every_rule_copes_with_clients_that_fail(name: str) -> None:
    """Client 1 fails in rounds 1 and 3: the model stays finite, and no rule asks for a client that is lost."""
    rule, faults, capture = (
        (SERVER_RULES | CLIENT_RULES | PERSONAL)[name](),
        FaultInjection("raise", [1], [1, 3]),
        Capture(),
    )
    orchestrator = FederatedOrchestrator(TinyClassifier())
    trainer(rule, faults, capture, rounds=3).fit(orchestrator, datamodule=TinyData(batch_size=4))
    assert [cohort.clients for cohort in capture.cohorts] == [(0, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5), (0, 2, 3, 4, 5)]
    assert orchestrator.params.isfinite().all()
