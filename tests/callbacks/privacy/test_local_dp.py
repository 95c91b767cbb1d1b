"""LocalDP: what a client sends, what it costs, and what goes with it."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from rules import TinyClassifier, TinyData
from toy import Capture, GivenData, InTurn, Linear, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedBN, FedProto, GradientHarmonization, LocalDP, LocalPart, Scaffold
from fl_lightning.callbacks.privacy.accountant import Accountant

WIDE = 100_000


def sent(clip: float, noise: float, length: float, *rules: Any, at_once: int = 1) -> tuple[Any, Any]:
    """The updates (2, 2 WIDE) of two clients whose first half is of a length, and the trainer."""
    rows = torch.zeros(2, 2 * WIDE, dtype=torch.float64)
    rows[:, :WIDE] = -length / math.sqrt(WIDE)
    capture, orchestrator = Capture(), FederatedOrchestrator(Linear(2 * WIDE), clients_at_once=at_once)
    fitted = trainer(LocalDP(clip, noise), *rules, capture)
    fitted.fit(orchestrator, datamodule=GivenData(rows))
    return capture.cohort.deltas, fitted


@pytest.mark.parametrize(("length", "left"), [(0.5, 0.5), (8.0, 2.0)])
@pytest.mark.parametrize("at_once", [1, 2])
def test_clipped_with_noise(length: float, left: float, at_once: int) -> None:
    """Noise of the standard deviation z S = 3 · 2 on each coordinate, of each client its own."""
    deltas, _ = sent(2.0, 3.0, length, at_once=at_once)
    noise = deltas.clone()
    noise[:, :WIDE] -= left / math.sqrt(WIDE)
    assert float(noise.std()) == pytest.approx(6.0, abs=4 * 6 / math.sqrt(2 * noise.numel()))
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 4 / math.sqrt(2 * WIDE)
    along = deltas[:, :WIDE].mean(1) * math.sqrt(WIDE)  # its noise has the standard deviation 6
    assert float(along.mean()) == pytest.approx(left, abs=4 * 6 / math.sqrt(2))
    assert torch.equal(sent(2.0, 1e-9, length)[0].norm(dim=1).round(decimals=3), torch.full((2,), left).double())


class Two(Linear):
    """The first number is shared, the second stays."""

    def __init__(self) -> None:
        super().__init__(1)
        self.own = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def training_step(self, batch: list[Any], batch_idx: int) -> Any:
        return self.w.sum() + self.own.sum()


def test_no_noise_in_what_stays() -> None:
    capture, orchestrator = Capture(), FederatedOrchestrator(Two())
    run = trainer(LocalPart(["own"]), LocalDP(), capture)
    run.fit(orchestrator, datamodule=GivenData(torch.zeros(2, 1, dtype=torch.float64)))
    assert capture.cohort.deltas[:, 1].tolist() == [0.0, 0.0]
    assert capture.cohort.deltas[:, 0].abs().min() > 0


def test_epsilon_is_that_of_the_client_that_took_part_most_often() -> None:
    """Client 0 in all three rounds, with noise 8 S on updates that differ by 2 S: three times z = 4."""
    cohorts = InTurn([0, 1], [0], [0, 1])
    run = trainer(LocalDP(1.0, 8.0), GradientHarmonization(), rounds=3)
    data = GivenData(torch.ones(2, 2, dtype=torch.float64), sampler=cohorts)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    assert float(run.callback_metrics["privacy/epsilon"]) == pytest.approx(Accountant("fixed").epsilon(8.0, 3, 1e-5))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], r"the server averages net\.0\.running_mean"),
        ([FedBN, FedProto], "clients send prototypes"),
        ([FedBN, partial(Scaffold, "I")], "clients send "),
    ],
)
def test_what_is_sent_beside_it(rules: list[Any], message: str) -> None:
    run = trainer(LocalDP(), *(make() for make in rules))
    with pytest.raises(ConfigurationError, match=f"LocalDP: {message}"):
        run.fit(FederatedOrchestrator(TinyClassifier()), datamodule=TinyData(batch_size=4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(LocalDP, 0.0), "clip must be positive"),
        (partial(LocalDP, 1.0, 0.0), "noise_multiplier must be positive"),
        (partial(LocalDP, 1.0, 1.0, 0.0), r"delta must be in \(0, 1\)"),
    ],
)
def test_arguments(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
