"""TopK by hand, and with what stays with a client."""

from functools import partial
from typing import Any

import pytest
import torch
from lib.toy import Capture, GivenData, Linear, close, trainer
from lib.two_numbers import ROWS, Two
from torch import Tensor

from fl_lightning import (
    ConfigurationError,
    FederatedCallback,
    FederatedOrchestrator,
    LocalRun,
    Server,
    TrafficMonitor,
)
from fl_lightning.callbacks import QSGD, FedADMM, LocalDP, LocalPart, SignSGD, TopK


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


class Doubles(FederatedCallback):
    """Changes the update after a compressor, and says nothing of its size."""

    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        return 2 * update


class Shifts(FederatedCallback):
    """Writes to the update that it gets."""

    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        return update.add_(0.01)


class Looks(FederatedCallback):
    """Changes nothing."""

    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        return update


CHAINS: list[tuple[list[Any], int]] = [
    ([partial(TopK, 0.1), LocalDP], 43 * 8),
    ([partial(QSGD, 4), LocalDP], 43 * 8),
    ([SignSGD, LocalDP], 43 * 8),
    ([partial(TopK, 0.1), partial(FedADMM, 10.0)], 43 * 8),
    ([partial(TopK, 0.1), Doubles], 43 * 8),
    ([partial(TopK, 0.1), Shifts], 43 * 8),
    ([LocalDP, partial(TopK, 0.1)], 5 * 12),
    ([LocalDP, partial(QSGD, 4)], 30),  # a sign and three bits each, and the norm
    ([LocalDP, SignSGD], 6 + 8),
    ([partial(TopK, 0.1), Looks], 5 * 12),
    ([partial(TopK, 0.1), partial(QSGD, 4)], 30),
]


@pytest.mark.parametrize(("rules", "expected"), CHAINS)
def test_bytes_of_what_leaves(rules: list[Any], expected: int) -> None:
    """Of 43 numbers of eight bytes: a rule after a compressor sends all of them, unless it says how it sends less."""
    capture, data = Capture(), GivenData(torch.randn(1, 43, dtype=torch.float64))
    run = trainer(*(make() for make in rules), capture, TrafficMonitor())
    run.fit(FederatedOrchestrator(Linear(43)), datamodule=data)
    assert float(run.callback_metrics["bytes/up"]) == expected


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_share(share: float) -> None:
    with pytest.raises(ConfigurationError, match=r"share must be in \(0, 1\], got"):
        TopK(share)
