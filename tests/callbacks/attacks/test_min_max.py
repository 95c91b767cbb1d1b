"""Min-Max: what the attackers send, beside the authors' code."""

import pytest
import torch
from lib.hand_made import apply
from lib.toy import close

from fl_lightning.callbacks import MinMax

HONEST = torch.tensor([[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5]], dtype=torch.float64)
SENT = torch.tensor([[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5], [0.5, 4.0], [1.5, 1.5]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("direction", "sent"),
    [("std", [-2.215575, -1.217930]), ("unit", [-2.181264, -1.635948]), ("sign", [-2.061471, -2.228138])],
)
def test_the_update_is_that_of_the_authors_code(direction: str, sent: list[float]) -> None:
    """github.com/vrt1shjwlkr/NDSS21-Model-Poisoning, ``our_attack_dist`` of cifar10/release-fedsgd-alexnet-mkrum.ipynb

    The released search ends within 1e-5 of γ.
    """
    rule = MinMax(2, direction)
    assert close(rule.collude(HONEST, 2), sent, 5e-5)


def test_as_far_as_honest_updates_lie_apart() -> None:
    _, capture = apply(SENT, MinMax(2))
    attacked = (capture.cohort.deltas != SENT).any(1)
    honest = SENT[~attacked]
    assert int(attacked.sum()) == 2
    away = torch.cdist(capture.cohort.deltas[attacked], honest).amax(1)
    assert close(away, torch.cdist(honest, honest).max().expand(2), 1e-6)


def test_equal_or_single_honest_updates_are_copied() -> None:
    same = torch.tensor([[1.0, -2.0]]).double()
    for direction in ("std", "unit", "sign"):
        assert close(MinMax(1, direction).collude(same.expand(3, 2), 1), same[0])
        assert close(MinMax(1, direction).collude(same, 1), same[0])
