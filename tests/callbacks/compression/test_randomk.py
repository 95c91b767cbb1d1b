"""RandomK: how much is sent, and that nothing is lost in the mean."""

from typing import Any

import pytest
import torch
from lib.toy import Capture, GivenData, Linear, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator, TrafficMonitor
from fl_lightning.callbacks import LocalPart, RandomK


def test_a_quarter_four_times_as_large() -> None:
    """An entry of 1 is sent as 4 in a quarter of the rounds: its mean over 300 is 1 ± √3 / √300 = 0.1."""
    capture, traffic = Capture(), TrafficMonitor()
    data = GivenData(torch.full((2, 8), -1.0, dtype=torch.float64))
    trainer(RandomK(0.25), capture, traffic, rounds=300).fit(FederatedOrchestrator(Linear(8)), datamodule=data)
    sent = torch.stack([cohort.deltas for cohort in capture.cohorts])
    assert set(sent.flatten().tolist()) == {0.0, 4.0}
    assert ((sent > 0).sum(2) == 2).all()
    assert (sent[:, 0] != sent[:, 1]).any(), "each client has its own draw"
    assert (sent.mean(0) - 1).abs().max() < 0.5
    assert abs(float(sent.mean()) - 1) < 1e-9
    assert traffic.total == 300 * 2 * (8 * 8 + 2 * 8)


class Parts(Linear):
    """90 numbers stay, 9 are shared; the gradient of each is 1."""

    def __init__(self) -> None:
        super().__init__(9)
        self.own = torch.nn.Parameter(torch.zeros(90, dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.w.sum() + self.own.sum()


def test_draws_among_what_is_shared() -> None:
    """A third of nine shared numbers are three of eight bytes, three times as large, for each of six clients."""
    capture, traffic = Capture(), TrafficMonitor()
    data = GivenData(torch.zeros(6, 1, dtype=torch.float64))
    run = trainer(RandomK(1 / 3), LocalPart(["own"]), capture, traffic)
    run.fit(FederatedOrchestrator(Parts()), datamodule=data)
    sent = capture.cohort.deltas
    assert (sent != 0).sum(1).tolist() == [3] * 6
    assert set(sent[sent != 0].tolist()) == {-3.0}
    assert float(run.callback_metrics["bytes/up"]) == 6 * 3 * 8


def test_share() -> None:
    with pytest.raises(ConfigurationError, match=r"share must be in \(0, 1\], got 0"):
        RandomK(0.0)
