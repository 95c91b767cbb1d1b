"""Centred clipping of (3, 4) and (0, -2), by hand, against the direct computation, and over rounds."""

import pytest
import torch
from lib.hand_made import apply
from lib.toy import close

from fl_lightning.callbacks import CentredClipping, FedNova
from fl_lightning.engine.updates import updates as shared

SENT = torch.tensor([[3.0, 4.0], [0.0, -2.0]], dtype=torch.float64)


def direct(updates: torch.Tensor, centre: torch.Tensor, threshold: float, iterations: int) -> torch.Tensor:
    """The formula as it stands, on vectors (K, P) and (P,)."""
    for _ in range(iterations):
        differences = updates - centre
        factors = (threshold / differences.norm(dim=1)).clamp(max=1)
        centre = centre + (factors[:, None] * differences).mean(0)
    return centre


def test_round_one_clips_from_zero() -> None:
    """τ = 2.5: (3, 4) → (1.5, 2), (0, -2) stays: (0.75, 0). n_k does not count."""
    assert close(apply(SENT, CentredClipping(2.5), samples=[5, 1])[0], (0.75, 0.0))


def test_second_iteration() -> None:
    """τ = 2.5, from (0.75, 0) to (3, 4): (2.25, 4), norm √21.0625 > τ; to (0, -2): (-0.75, -2), norm √4.5625 < τ."""
    share = 2.5 / 21.0625**0.5
    expected = (0.75 + (2.25 * share - 0.75) / 2, (4 * share - 2) / 2)
    assert close(apply(SENT, CentredClipping(2.5, iterations=2))[0], expected)


def test_round_two_clips_around_the_aggregate_of_round_one() -> None:
    """τ = 5.5 clips nothing: v = (1.5, 1) in both rounds, and the model is their sum.

    With τ = 2.5, round 2 is the second iteration above, since the same updates come again.
    """
    assert close(apply(SENT, CentredClipping(5.5), rounds=2)[0], (3.0, 2.0))
    first, second = direct(SENT, torch.zeros(2), 2.5, 1), direct(SENT, torch.zeros(2), 2.5, 2)
    assert close(apply(SENT, CentredClipping(2.5), rounds=2)[0], first + second)
    assert close(first, (0.75, 0.0))


@pytest.mark.parametrize("columns", [3, 1 << 16])
@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("threshold", [0.5, 2.0, 3.5])
def test_coefficients_agree_with_vectors(
    threshold: float, iterations: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds of five updates in R^7, some clipped and some not, in blocks of columns or at once."""
    monkeypatch.setattr(shared, "COLUMNS", columns)
    updates = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    updates[2] *= 30
    model, centre = torch.zeros(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    for _ in range(3):
        centre = direct(updates, centre, threshold, iterations)
        model += centre
    assert close(apply(updates, CentredClipping(threshold, iterations), rounds=3)[0], model)


def test_it_follows_rules_before_it() -> None:
    """FedNova with steps (1, 3), uniform: τ_eff = 2 scales by (2, 2/3), to (6, 8) and (0, -4/3).

    τ = 5: (3, 4) and (0, -4/3), v = (1.5, 4/3). The second round, from there, is the formula's second iteration.
    """
    assert close(apply(SENT, FedNova(), CentredClipping(5.0), steps=[1, 3])[0], (1.5, 4 / 3))
    model, _ = apply(SENT, FedNova(), CentredClipping(5.0), steps=[1, 3], rounds=2)
    scaled = SENT * torch.tensor([[2.0], [2 / 3]], dtype=torch.float64)
    assert close(model, direct(scaled, torch.zeros(2), 5.0, 1) + direct(scaled, torch.zeros(2), 5.0, 2))


def test_one_client_moves_the_aggregate_by_its_share_of_the_threshold_at_most() -> None:
    """Of two clients with τ = 2: by 1."""
    for scale in (-1e8, 0.0, 1e8):
        assert (apply([[0.0, 0.0], [3 * scale, 4 * scale]], CentredClipping(2.0))[0]).norm() <= 1 + 1e-9


def test_one_client_is_clipped() -> None:
    """(3, 4) to the norm 1, then by 1 a round until it is there: 1, 2, 3, 4, 5, 5 sum up to 20 times (0.6, 0.8)."""
    assert close(apply(SENT[:1], CentredClipping(1.0), rounds=6)[0], (12.0, 16.0), 1e-6)
