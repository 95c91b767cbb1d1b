"""Bulyan against its definition written out, and against one bad client."""

import pytest
import torch
from lib.hand_made import apply
from lib.toy import close

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import Bulyan


def written_out(updates: torch.Tensor, f: int) -> list[float]:
    """In lists, with distances in place of the Gram matrix."""
    left, chosen = list(range(len(updates))), []
    while len(left) > 2 * f:
        scores = {}
        for k in left:
            distances = sorted(float((updates[k] - updates[j]).square().sum()) for j in left if j != k)
            scores[k] = sum(distances[: max(1, len(left) - f - 2)])
        best = min(left, key=lambda k: (scores[k], k))
        left.remove(best)
        chosen.append(updates[best].tolist())
    step = []
    for values in zip(*chosen, strict=True):
        ordered = sorted(values)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        near = sorted(values, key=lambda value: abs(value - middle))[: len(values) - 2 * f]
        step.append(sum(near) / len(near))
    return step


@pytest.mark.parametrize(("clients", "f"), [(3, 0), (7, 1), (12, 2), (15, 3)])
def test_as_defined(clients: int, f: int) -> None:
    updates = torch.randn(clients, 4, generator=torch.Generator().manual_seed(clients), dtype=torch.float64)
    assert close(apply(updates, Bulyan(f), samples=list(range(1, clients + 1)))[0], written_out(updates, f))


def test_one_coordinate_cannot_be_spoilt() -> None:
    """A client that agrees with all in 99 coordinates, and lies in one by less than Krum sees."""
    updates = 0.1 * torch.randn(7, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    updates[3] = updates.mean(0)
    updates[3, 0] = 2.0
    step = apply(updates, Bulyan(1))[0]
    assert float((step - 1).abs().max()) < 0.3


def test_too_few_clients() -> None:
    with pytest.raises(ConfigurationError, match=r"needs K >= 4f \+ 3 = 7 clients a round, got K=6 in round 1"):
        apply(torch.zeros(6, 2), Bulyan(1))
    assert close(apply([[1.0, 2.0]], Bulyan(1))[0], [1.0, 2.0])
