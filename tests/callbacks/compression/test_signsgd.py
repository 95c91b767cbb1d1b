"""SignSGD by hand."""

import torch
from lib.toy import Capture, GivenData, Linear, trainer

from fl_lightning import FederatedOrchestrator, TrafficMonitor
from fl_lightning.callbacks import SignSGD


def test_signs_of_the_mean_magnitude_and_what_is_left() -> None:
    """Of (3, -1): (2, -2), and (1, 1) is kept; then of (4, 0): (2, 0). Two bits are a byte; the magnitude has eight."""
    rule, capture, traffic = SignSGD(), Capture(), TrafficMonitor()
    data = GivenData(torch.tensor([[-3.0, 1.0]], dtype=torch.float64))
    trainer(rule, capture, traffic, rounds=2).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    assert [cohort.deltas.tolist() for cohort in capture.cohorts] == [[[2.0, -2.0]], [[2.0, 0.0]]]
    assert rule.state["memory/0"].tolist() == [2.0, 0.0]
    assert traffic.total == 2 * (2 * 8 + 1 + 8)
