"""Scaling: attackers send a multiple of what they learned."""

import pytest
import torch
from lib.toy import close, send

from fl_lightning.callbacks import ScalingAttack

SENT = torch.tensor([[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5], [0.5, 4.0]], dtype=torch.float64)


def test_attackers_send_a_multiple_and_the_others_what_they_learned() -> None:
    factors = send(SENT, ScalingAttack(2, 3.0))[1].cohort.deltas / SENT
    assert sorted(factors[:, 0].tolist()) == pytest.approx([1, 1, 3, 3])


def test_scaled_by_the_number_of_clients_an_average_is_nearly_the_attackers_model() -> None:
    """Three send nothing, the fourth (4, 8): a quarter of four times that is (4, 8) itself."""
    updates = torch.zeros(4, 2)
    attacker = int((send(SENT, ScalingAttack(1, 0.0))[1].cohort.deltas.abs().sum(1) == 0).nonzero())
    updates[attacker] = torch.tensor([4.0, 8.0])
    assert close(send(updates, ScalingAttack(1, 4.0))[0], (4, 8))
