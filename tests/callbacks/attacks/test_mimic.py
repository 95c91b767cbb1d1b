"""Mimic: whom the attackers copy, beside the authors' code."""

import torch
from lib.hand_made import apply, serve
from lib.toy import close

from fl_lightning.callbacks import Mimic

SENT = torch.tensor([[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5], [0.5, 4.0], [1.5, 1.5]], dtype=torch.float64)
ROUNDS = [
    [[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5]],
    [[0.0, 1.0], [2.0, 2.0], [-1.0, 3.0]],
    [[1.0, -1.0], [0.5, 2.0], [-3.0, 0.0]],
]


def test_who_is_copied_is_as_in_the_authors_code() -> None:
    """github.com/epfml/byzantine-robust-noniid-optimizer, ``codes/attacks/mimic.py``, ``MimicVariantAttacker(2)``.

    Three workers in three rounds. Its direction begins where the rule's does, in place of the released draw.
    """
    rule = Mimic(1, warmup=2)
    rule.state = {}
    rule._honest = [0, 1, 2]
    found = []
    for updates in ROUNDS:
        found.append(rule.collude(torch.tensor(updates).double(), 1).tolist())
    assert found == [[3.0, -1.0], [2.0, 2.0], [0.5, 2.0]]
    assert close(rule.state["mean"], [0.5, 1.25])
    assert close(rule.state["direction"], [0.905021680634214, -0.4253654400418808])


def test_one_is_copied_while_it_takes_part() -> None:
    _, capture = serve(SENT, Mimic(2, warmup=1), cohorts=[[0, 1, 2, 3, 4]])
    attacked = (capture.cohort.deltas != SENT).any(1)
    copied = capture.cohort.deltas[attacked]
    target = next(k for k in range(5) if torch.equal(SENT[k], copied[0]))
    assert torch.equal(copied[0], copied[1])
    assert not attacked[target]
    rest = [k for k in range(5) if k != target]
    _, capture = serve(SENT, Mimic(2, warmup=1), cohorts=[[0, 1, 2, 3, 4], rest, [0, 1, 2, 3, 4]])
    away, back = (capture.cohorts[number].deltas for number in (1, 2))
    others = away[attacked[rest]].tolist()
    assert others[0] == others[1]
    assert others[0] != SENT[target].tolist()
    assert torch.equal(back[attacked], copied)


def test_equal_updates_stay_equal() -> None:
    assert close(apply(torch.ones(4, 2), Mimic(1))[0], [1.0, 1.0])
