"""TopK by hand, and with what stays with a client."""

import pytest
import torch
from toy import Capture, GivenData, Linear, close, trainer
from two_numbers import ROWS, Two

from fl_lightning import ConfigurationError, FederatedOrchestrator, TrafficMonitor
from fl_lightning.callbacks import LocalPart, TopK


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_largest_entry_and_what_is_left(at_once: int) -> None:
    """Of (3, -4, 1) first -4; then of (6, -4, 2) 6. Two clients that are alike; value and index are 8 + 4 bytes."""
    rule, capture, traffic = TopK(0.3), Capture(), TrafficMonitor()
    data = GivenData(torch.tensor([[-3.0, 4.0, -1.0]] * 2, dtype=torch.float64))
    orchestrator = FederatedOrchestrator(Linear(3), clients_at_once=at_once)
    trainer(rule, capture, traffic, rounds=2).fit(orchestrator, datamodule=data)
    assert [cohort.deltas[0].tolist() for cohort in capture.cohorts] == [[0.0, -4.0, 0.0], [6.0, 0.0, 0.0]]
    assert rule.state["memory/1"].tolist() == [0.0, -4.0, 2.0]
    assert traffic.total == 2 * 2 * (3 * 8 + 12)


def test_of_what_is_shared_alone() -> None:
    """One of one shared number, whichever is larger."""
    rule, traffic = TopK(0.5), TrafficMonitor()
    orchestrator = FederatedOrchestrator(Two())
    trainer(rule, LocalPart(["own"]), traffic, rounds=1).fit(orchestrator, datamodule=GivenData(ROWS))
    assert close(orchestrator.params, [2.0, 0.0])
    assert traffic.total == 2 * (8 + 12)


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_share(share: float) -> None:
    with pytest.raises(ConfigurationError, match=r"share must be in \(0, 1\], got"):
        TopK(share)
