"""A little is enough: how far the attackers may go, and where they end."""

import pytest
import torch
from lib.hand_made import apply
from lib.toy import close

from fl_lightning.callbacks import ALIE
from fl_lightning.callbacks.attacks.alie import largest_z


@pytest.mark.parametrize(
    ("clients", "attackers", "z"),
    [
        (50, 24, 1.42608),  # s = 26 - 24 = 2: the quantile at 24/26
        (20, 4, 0.15731),  # s = 11 - 4 = 7: at 9/16
        (5, 1, 0.0),  # s = 3 - 1 = 2: at 2/4
        (4, 1, -0.43073),  # s = 3 - 1 = 2: at 1/3
        (10, 7, 0.43073),  # a majority by themselves: s = 1, at 2/3
        (2, 1, 0.0),  # s = 1 of one honest client
        (3, 2, 0.0),
    ],
)
def test_the_largest_z_that_hides(clients: int, attackers: int, z: float) -> None:
    assert largest_z(clients, attackers) == pytest.approx(z, abs=1e-5)


@pytest.mark.parametrize(("z", "used"), [(None, 0.4307273), (1.5, 1.5), (-1.0, -1.0)])
def test_attackers_send_the_mean_less_z_deviations(z: float | None, used: float) -> None:
    """The three honest of five send 1, 2, 6 in the first coordinate and 0, 0, 3 in the second: means 3 and 1, variances
    14/3 and 2. s = 3 - 2 = 1, so z is the quantile at 2/3.
    """
    one_by_one = torch.eye(5, dtype=torch.float64)
    attacking = (apply(one_by_one, ALIE(2))[1].cohort.deltas != one_by_one).any(1)
    updates = torch.full((5, 2), 7.0, dtype=torch.float64)
    updates[~attacking] = torch.tensor([[1.0, 0.0], [2.0, 0.0], [6.0, 3.0]], dtype=torch.float64)
    sent = apply(updates, ALIE(2, z))[1].cohort.deltas
    assert close(sent[~attacking], updates[~attacking])
    spread = torch.tensor([14 / 3, 2.0], dtype=torch.float64).sqrt()
    expected = torch.tensor([3.0, 1.0], dtype=torch.float64) - used * spread
    assert close(sent[attacking], expected.expand(2, 2), 1e-6)
