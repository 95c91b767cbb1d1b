"""Sign flipping: who attacks, and with what."""

from typing import Any

import pytest
import torch
from lib.toy import Capture, GivenData, Linear, close, send, train, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FaultInjection, FedProx, ScalingAttack, SignFlip
from fl_lightning.callbacks.attacks.attack import draw_attackers

SENT = torch.tensor([[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5], [0.5, 4.0]], dtype=torch.float64)


def drawn(count: int, seed: int = 0, sizes: Any = (1,) * 10) -> frozenset[int]:
    return draw_attackers(torch.tensor(sizes), count, torch.Generator().manual_seed(seed))


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


def test_another_seed_draws_others_among_the_clients_with_data() -> None:
    """Of ten clients, 0 to 5 have none: all others attack, and five cannot."""
    assert len(drawn(3)) == 3
    assert drawn(3) == drawn(3)
    assert len({drawn(3, seed) for seed in range(5)}) > 1
    sizes = [0] * 6 + [1] * 4
    assert drawn(4, sizes=sizes) == {6, 7, 8, 9}
    with pytest.raises(ConfigurationError, match="at most 4, the number of clients with data, got 5"):
        drawn(5, sizes=sizes)


def test_the_same_clients_attack_in_every_round_and_in_every_attack_of_a_seed() -> None:
    """Five of ten clients take part in each of four rounds; those among them who were drawn attack."""
    found = []
    for attack in (SignFlip(3, 2.0), ScalingAttack(3, 2.0)):
        capture = Capture()
        data = GivenData(torch.full((10, 1), -1.0, dtype=torch.float64), participation=5)
        trainer(attack, capture, rounds=4).fit(FederatedOrchestrator(Linear(1)), datamodule=data)
        rounds = [zip(cohort.clients, cohort.deltas[:, 0].abs().tolist(), strict=True) for cohort in capture.cohorts]
        found.append([{client for client, size in sent if size > 1.5} for sent in rounds])
    assert found[0] == found[1]
    assert 0 < len(set().union(*found[0])) <= 3


def test_it_flips_what_rules_before_it_made_of_the_update() -> None:
    """FaultInjection's update of 1e38 in each coordinate."""
    rules = FedProx(0.1), FaultInjection("huge"), SignFlip(4, 0.5)
    assert close(send(SENT, *rules)[1].cohort.deltas / 1e38, -0.5 * torch.ones(4, 2))
