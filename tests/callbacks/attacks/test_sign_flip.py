"""Sign flipping: who attacks, and with what."""

from typing import Any

import pytest
import torch
from toy import Capture, GivenData, Linear, close, send, train, trainer

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator
from fl_lightning.callbacks import CoordinateMedian, FedProx, SignFlip

SENT = torch.tensor([[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5], [0.5, 4.0]], dtype=torch.float64)


def attackers(count: int, seed: int = 0, **data: Any) -> list[set[int]]:
    """Who sends something else than its update, round by round, of ten clients with the update (1,)."""
    orchestrator, capture = FederatedOrchestrator(Linear(1), seed=seed), Capture()
    given = GivenData(torch.full((10, 1), -1.0, dtype=torch.float64), **data)
    trainer(SignFlip(count), capture, rounds=4).fit(orchestrator, datamodule=given)
    return [{k for k, d in zip(c.clients, c.deltas[:, 0].tolist(), strict=True) if d < 0} for c in capture.cohorts]


@pytest.mark.parametrize("scale", [10.0, 1.0, 0.0])
def test_attackers_send_the_opposite_and_the_others_what_they_learned(scale: float) -> None:
    """All of four attack, or none; two of them otherwise."""
    assert close(send(SENT, SignFlip(4, scale))[1].cohort.deltas, -scale * SENT)
    assert close(send(SENT, SignFlip(0, scale))[1].cohort.deltas, SENT)
    factors = send(SENT, SignFlip(2, scale))[1].cohort.deltas / SENT
    assert sorted(factors[:, 0].tolist()) == pytest.approx([-scale, -scale, 1, 1])
    assert close(factors[:, 0], factors[:, 1])


def test_the_anchor_is_where_the_round_began() -> None:
    """T in round 1: w = ((0.19 - 3·1.314)/4, (-0.36 + 3·0.28525)/4) without attack. Flipped with scale 1: -w.

    In round 2 the clients start from there, not from zero: from -w, client 0's two steps of (w - 1)·0.9 + 1 in the
    first coordinate, client 1's three of (w + 2)·0.7 - 2, each mirrored at -w.
    """
    w = (0.19 - 3 * 1.314) / 4
    ends = [((-w - 1) * 0.9**2 + 1), ((-w + 2) * 0.7**3 - 2)]
    mean = (ends[0] + 3 * ends[1]) / 4
    assert train(SignFlip(2, 1.0))[0].item() == pytest.approx(-w)
    assert train(SignFlip(2, 1.0), rounds=2)[0].item() == pytest.approx(-w - (mean + w))


def test_the_same_clients_attack_in_every_round_and_another_seed_draws_others() -> None:
    rounds = attackers(3)
    assert len(rounds[0]) == 3
    assert all(found == rounds[0] for found in rounds)
    assert attackers(3) == rounds
    assert len({frozenset(attackers(3, seed)[0]) for seed in range(5)}) > 1


def test_only_clients_with_data_are_drawn() -> None:
    """Of ten clients, 0 to 5 have none: all others attack, and five cannot."""
    samples = [0] * 6 + [1] * 4
    assert attackers(4, samples=samples)[0] == {6, 7, 8, 9}
    with pytest.raises(ConfigurationError, match="at most 4, the number of clients with data, got 5"):
        attackers(5, samples=samples)


def test_with_some_of_the_clients_in_each_round_those_drawn_attack() -> None:
    """Three rounds of five clients each: whoever attacks is one of the same three."""
    found = attackers(3, participation=5)
    assert len(set().union(*found)) <= 3
    assert set().union(*found) <= attackers(3)[0]
    assert any(found)


def test_the_median_withstands_what_averaging_does_not() -> None:
    """Three of ten send -10 where the others send 1: the mean is (7 - 30)/10."""
    updates = torch.ones(10, 1)
    assert close(send(updates, SignFlip(3))[0], [-2.3])
    assert close(send(updates, SignFlip(3), CoordinateMedian())[0], [1.0])


class Doubles(FederatedCallback):
    """Another client rule."""

    def on_client_end(self, orchestrator: FederatedOrchestrator, run: Any) -> None:
        run.params.add_(run.params - run.anchor)


def test_it_flips_what_rules_before_it_made_of_the_update() -> None:
    assert close(send(SENT, Doubles(), FedProx(0.1), SignFlip(4, 3.0))[1].cohort.deltas, -6 * SENT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1,), "num_byzantine must be at least 0, got -1"),
        ((1, -1.0), "scale must be at least 0 and finite, got -1.0"),
        ((1, float("nan")), "scale must be at least 0 and finite, got nan"),
        ((1, float("inf")), "scale must be at least 0 and finite, got inf"),
    ],
)
def test_bad_arguments_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SignFlip(*arguments)
