"""LastLosses and PowerOfChoice: the clients with the largest last losses take part, also after a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lib.toy import Capture, GivenData, Linear, Quadratic, ToyData, trainer

from fl_lightning import Availability, ClientSampler, ConfigurationError, FederatedOrchestrator, PowerOfChoice
from fl_lightning.callbacks import LastLosses, SaveCohorts

LOSSES = [0.5, 3.0, 1.0, 2.0]


def fit(rounds: int, *callbacks: Any, candidates: int = 4, losses: Any = LOSSES, **settings: Any) -> Any:
    """The rule and the cohorts of some rounds of four clients, two a round; losses stay as they are given."""
    rule, capture = LastLosses(), Capture()
    data = GivenData(
        torch.zeros(4, 1).double(), losses=losses, participation=2, sampler=PowerOfChoice(candidates), seed=7
    )
    ckpt_path = settings.pop("ckpt_path", None)
    made = trainer(rule, capture, *callbacks, rounds=rounds, **settings)
    made.fit(FederatedOrchestrator(Linear(1)), datamodule=data, ckpt_path=ckpt_path)
    return made, rule, [cohort.clients for cohort in capture.cohorts]


def test_first_all_clients_then_those_with_the_largest_losses() -> None:
    """Two of four take part in round 1, the others in round 2, and then clients 1 and 3, with the losses 3 and 2."""
    _, rule, cohorts = fit(5)
    assert {*cohorts[0], *cohorts[1]} == {0, 1, 2, 3}
    assert cohorts[2:] == [(1, 3)] * 3
    assert rule.state["losses"].tolist() == LOSSES


def test_losses_are_those_of_the_last_participation() -> None:
    """On T, client 0 has 1.5, then 0.81 · ½ + 2 · 0.64 · ½ in its two steps of round 1; each round has one client."""
    rule, capture = LastLosses(), Capture()
    data = ToyData(participation=1, sampler=PowerOfChoice(2))
    trainer(rule, capture, rounds=2).fit(FederatedOrchestrator(Quadratic()), datamodule=data)
    assert {cohort.clients for cohort in capture.cohorts} == {(0,), (1,)}
    for cohort in capture.cohorts:
        assert rule.state["losses"][cohort.clients[0]] == cohort.losses[0]


def test_a_loss_that_is_not_known_is_not_taken_in() -> None:
    """Client 0's is nan: it stays among those that have not taken part, and comes first."""
    _, rule, cohorts = fit(6, losses=[float("nan"), 3.0, 1.0, 2.0])
    assert rule.state["losses"][0] == torch.inf
    assert cohorts[-1] == (0, 1)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_draws_the_same_clients(stop: int, tmp_path: Path) -> None:
    _, _, whole = fit(6, candidates=3)
    first, _, begun = fit(stop, candidates=3)
    first.save_checkpoint(tmp_path / "last.ckpt")
    _, rule, rest = fit(6, candidates=3, ckpt_path=str(tmp_path / "last.ckpt"))
    assert begun + rest == whole
    assert rule.state["losses"].tolist() == LOSSES


def test_a_second_fit_forgets_the_losses() -> None:
    data = GivenData(torch.zeros(4, 1).double(), losses=LOSSES, participation=2, sampler=PowerOfChoice(4), seed=7)
    cohorts = []
    for _ in range(2):
        capture = Capture()
        trainer(LastLosses(), capture, rounds=3).fit(FederatedOrchestrator(Linear(1)), datamodule=data)
        cohorts.append([cohort.clients for cohort in capture.cohorts])
    assert cohorts[0] == cohorts[1]


class Uniform(ClientSampler):
    pass


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        ({"sampler": Uniform()}, "got Uniform"),
        ({"sampler": PowerOfChoice(2), "availability": Availability()}, "got PowerOfChoice and availability"),
    ],
)
def test_what_the_rule_needs(settings: Any, got: str) -> None:
    data = ToyData(participation=1, **settings)
    with pytest.raises(ConfigurationError, match=f"{got}|LastLosses, and nothing that asks"):
        trainer(LastLosses()).fit(FederatedOrchestrator(Quadratic()), datamodule=data)


def test_the_sampler_needs_the_rule() -> None:
    data = ToyData(participation=1, sampler=PowerOfChoice(2))
    with pytest.raises(ConfigurationError, match="not known for round 1: list the rule LastLosses"):
        trainer().fit(FederatedOrchestrator(Quadratic()), datamodule=data)


def test_later_cohorts_are_not_known() -> None:
    with pytest.raises(ConfigurationError, match="not known for round 2"):
        fit(3, SaveCohorts())
