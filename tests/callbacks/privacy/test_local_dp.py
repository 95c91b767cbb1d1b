"""LocalDP: what a client sends, what it costs, and what goes with it."""

import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import Capture, GivenData, InTurn, Linear, trainer
from lib.two_devices import on_two_devices

from fl_lightning import (
    Availability,
    Cohort,
    ConfigurationError,
    FederatedCallback,
    FederatedOrchestrator,
    LocalRun,
    Server,
)
from fl_lightning.callbacks import (
    QSGD,
    ClientDP,
    FaultInjection,
    FedADMM,
    FedALA,
    FedBN,
    FedDisco,
    FedFV,
    FedProto,
    FedProx,
    GradientHarmonization,
    LocalDP,
    LocalPart,
    RandomK,
    Scaffold,
    SignFlip,
    SignSGD,
    TopK,
)
from fl_lightning.callbacks.privacy.accountant import Accountant
from fl_lightning.engine.federation.cohorts import Turnout

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


class Late(Availability):
    """Client 1 is late in round 2."""

    def turnout(self, selected: Any, needed: int, num_steps: Any, round: int, seed: int) -> Turnout:
        late = [1] if round == 2 else []
        return Turnout(tuple(k for k in selected if k not in late), late=tuple(late))


LEFT_OUT: dict[str, tuple[list[Any], Any, Any]] = {
    "none": ([], {}, {}),
    "nan": ([FaultInjection("nan", clients=[0, 1])], {}, {}),
    "alone": ([FaultInjection("nan", clients=[0], rounds=[2])], {}, {}),
    "an error": ([FaultInjection("raise", clients=[1])], {}, {}),
    "norm": ([FaultInjection("huge", clients=[1])], {"max_update_norm": 2.0}, {}),
    "late": ([], {}, {"availability": Late()}),
}


@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.parametrize("at_once", [1, 2])
def test_who_is_left_out_has_sent_all_the_same(name: str, at_once: int) -> None:
    """Clients 0, 1 and 2 in round 1, 0 and, in one case late, 1 in round 2, and all again in round 3."""
    rules, settings, given = LEFT_OUT[name]
    cohorts = InTurn([0, 1, 2], [0, 1] if name == "late" else [0], [0, 1, 2])
    rule, data = LocalDP(1.0, 8.0), GivenData(torch.ones(3, 2, dtype=torch.float64), sampler=cohorts, **given)
    run = trainer(rule, *rules, rounds=3)
    run.fit(FederatedOrchestrator(Linear(2), clients_at_once=at_once, **settings), datamodule=data)
    assert rule.state["made"].tolist() == [[3, 3 if name == "late" else 2, 2]]
    assert float(run.callback_metrics["privacy/epsilon"]) == pytest.approx(Accountant("fixed").epsilon(8.0, 3, 1e-5))


def test_on_two_devices(tmp_path: Path) -> None:
    """As on one: every device knows what the clients of the other have sent."""

    def made(**flags: Any) -> Any:
        rule, cohorts = LocalDP(1.0, 8.0), InTurn([0, 1, 2], [0, 1])
        data = GivenData(torch.ones(3, 2, dtype=torch.float64), sampler=cohorts)
        fault = FaultInjection("nan", clients=[0])
        trainer(rule, fault, rounds=2, **flags).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
        return rule.state["made"].tolist()

    assert made() == [[2, 2, 1]]
    assert on_two_devices(tmp_path, {"made": made})["made"] == [[[2, 2, 1]]] * 2


class Shares(FederatedCallback):
    """Sends a part of what the client has learned, without noise."""

    def upload(self, orchestrator: Server, run: LocalRun, update: Any) -> Any:
        return update + (run.params - run.anchor)


class Rounds(FederatedCallback):
    """Rounds what it gets."""

    post_processes = True

    def upload(self, orchestrator: Server, run: LocalRun, update: Any) -> Any:
        return update.round()


class Breaks(Rounds):
    """Has an upload of its own, which the class that it derives from cannot vouch for."""

    def upload(self, orchestrator: Server, run: LocalRun, update: Any) -> Any:
        return run.params


@pytest.mark.parametrize("rule", [FedADMM, Shares, Breaks])
def test_nothing_without_noise_after_it(rule: Any) -> None:
    data = GivenData(torch.ones(2, 2, dtype=torch.float64))
    with pytest.raises(ConfigurationError, match=f"LocalDP: {rule.__name__} changes the update after the noise"):
        trainer(LocalDP(), rule()).fit(FederatedOrchestrator(Linear(2)), datamodule=data)


@pytest.mark.parametrize("seed", range(20))
def test_another_update_moves_what_is_sent_by_two_clips_at_most(seed: int) -> None:
    """In random chains: the noise is the same, so two sent updates differ by what the clip leaves of the two."""
    draw = random.Random(seed)
    before = draw.sample([partial(FedADMM, 0.1), partial(FedProx, 0.1), partial(QSGD, 4), partial(TopK, 0.5)], 2)
    clip, vectors = draw.choice([0.1, 1.0]), torch.randn(2, 5, generator=torch.Generator().manual_seed(seed))
    sent = []
    for vector in vectors.double() * 10:
        capture, data = Capture(), GivenData(vector[None])
        trainer(*(make() for make in before), LocalDP(clip, 0.5), capture, rounds=2).fit(
            FederatedOrchestrator(Linear(5)), datamodule=data
        )
        sent.append(torch.cat([cohort.deltas for cohort in capture.cohorts]))
    assert float((sent[0] - sent[1]).norm(dim=1).max()) <= 2 * clip * (1 + 1e-9)


@pytest.mark.parametrize("make", [Rounds, partial(SignFlip, 1), partial(TopK, 0.5), partial(QSGD, 4), SignSGD, RandomK])
def test_what_reads_the_noisy_update_alone_goes_after_it(make: Any) -> None:
    data = GivenData(torch.ones(2, 2, dtype=torch.float64))
    run = trainer(LocalDP(), make())
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    assert float(run.callback_metrics["privacy/epsilon"]) == pytest.approx(Accountant("fixed").epsilon(1.0, 1, 1e-5))


def test_epsilon_is_that_of_the_client_that_took_part_most_often() -> None:
    """Client 0 in all three rounds, with noise 8 S on updates that differ by 2 S: three times z = 4."""
    cohorts = InTurn([0, 1], [0], [0, 1])
    run = trainer(LocalDP(1.0, 8.0), GradientHarmonization(), rounds=3)
    data = GivenData(torch.ones(2, 2, dtype=torch.float64), sampler=cohorts)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    assert float(run.callback_metrics["privacy/epsilon"]) == pytest.approx(Accountant("fixed").epsilon(8.0, 3, 1e-5))


class Weighs(FederatedCallback):
    """Weighs clients, by what nobody knows."""

    streams = True

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort


class WeighsLosses(Weighs):
    reads = frozenset({"losses"})


class WeighsUpdates(Weighs):
    reads = frozenset()


@pytest.mark.parametrize("private", [LocalDP, partial(ClientDP, noise_multiplier=1.0)])
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Weighs, r"Weighs\.aggregate may read more than updates, which alone have noise.*: set reads in Weighs"),
        (WeighsLosses, "WeighsLosses reads the clients' losses, which have no noise"),
    ],
)
def test_a_rule_of_ones_own_says_what_it_reads(private: Any, rule: Any, message: str) -> None:
    data = GivenData(torch.ones(2, 2, dtype=torch.float64))
    with pytest.raises(ConfigurationError, match=message):
        trainer(private(), rule()).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    trainer(private(), WeighsUpdates(), FedALA(["w"])).fit(FederatedOrchestrator(Linear(2)), datamodule=data)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], r"the server averages net\.0\.running_mean"),
        ([FedBN, FedProto], "clients send prototypes"),
        ([FedBN, partial(Scaffold, "I")], "clients send "),
        ([FedBN, FedFV], "FedFV reads the clients' losses, which have no noise, so ε would be false: leave it out"),
        ([FedBN, FedDisco], "FedDisco reads the clients' class counts, which have no noise"),
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
