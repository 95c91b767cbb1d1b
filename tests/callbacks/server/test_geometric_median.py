"""The geometric median of a triangle, by hand, and its properties."""

import math
from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import close

from fl_lightning.callbacks import FedAvg, FedNova, GeometricMedian
from fl_lightning.callbacks.server.geometric_median import distances

TRIANGLE = [[-1.0, 0.0], [1.0, 0.0], [0.0, 2.0]]


def test_fermat_point_of_a_triangle() -> None:
    """Seen from it the corners are 120° apart: on the axis at (0, y) with y = tan 30° = 1/√3.

    Its distances are 2/√3 twice and 2 - 1/√3; the weights go as 1/distance: (√3/2, √3/2, 1/(2 - 1/√3)).
    """
    reached, capture = apply(TRIANGLE, FedAvg("uniform"), GeometricMedian(), samples=[5, 1, 2])
    assert close(reached, (0.0, 1 / math.sqrt(3)))
    pulls = torch.tensor([math.sqrt(3) / 2, math.sqrt(3) / 2, 1 / (2 - 1 / math.sqrt(3))], dtype=torch.float64)
    assert close(capture.cohort.weights, pulls / pulls.sum())


def test_one_iteration_by_hand() -> None:
    """(0, 0), (4, 0) with the weights (3, 1)/4: from their mean (1, 0) the distances are 1 and 3.

    The pulls (3/4)/1 and (1/4)/3 = (9, 1)/12, so β = (0.9, 0.1) and the point (0.4, 0). Then distances 0.4 and 3.6:
    1.875 and 0.0694…, 27 to 1, so β = (27, 1)/28.
    """
    updates = [[0.0, 0.0], [4.0, 0.0]]
    assert close(apply(updates, GeometricMedian(iterations=1), samples=[3, 1])[1].cohort.weights, (0.9, 0.1))
    assert close(apply(updates, GeometricMedian(iterations=2), samples=[3, 1])[0], (4 / 28, 0.0))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_a_majority_at_one_point_wins_up_to_the_smoothing(scale: float) -> None:
    """n_k = (3, 1, 1), most of it at (3, 4), whose norm is the median one: ν = 5 · smoothing.

    On the point itself its pull would be (3/5)/ν, the others' (1/5)/d: it is reached up to about ν, at any scale.
    """
    updates = scale * torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]], dtype=torch.float64)
    for smoothing in (1e-6, 1e-3):
        reached = apply(updates, GeometricMedian(smoothing=smoothing), samples=[3, 1, 1])[0]
        away = float((reached / scale - torch.tensor([3.0, 4.0])).norm())
        assert away <= 5 * smoothing


def test_smoothing_caps_the_pull_of_near_updates() -> None:
    """ν = 1 · the median norm 2 exceeds all distances: the pulls stay the weights, the point the mean, (1, 2/3).

    (0, 0) has no norm that counts; 2 is the lower of the other two. With two such, 3 is the only one: (1, 0).
    """
    updates = [[0.0, 0.0], [0.0, 2.0], [3.0, 0.0]]
    assert close(apply([[0.0, 0.0], [0.0, 0.0], [3.0, 0.0]], GeometricMedian(smoothing=1.0))[0], (1.0, 0.0))
    assert close(apply(updates, GeometricMedian(smoothing=2.0))[0], (1.0, 2 / 3))
    assert not close(apply(updates, GeometricMedian(smoothing=1e-3))[0], (1.0, 2 / 3), 0.1)


@pytest.mark.parametrize("seed", range(5))
def test_no_point_nearby_is_better(seed: int) -> None:
    """The weighted sum of distances in R^4, and 200 other points at distances of 0.001 to 1."""
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    samples = torch.randint(1, 9, (6,), generator=generator)
    reached = apply(updates, GeometricMedian(), samples=samples.tolist())[0]

    def total(point: Any) -> float:
        return float(samples.double() @ (updates - point).norm(dim=1))

    for size in 10 ** (-3 * torch.rand(200, generator=generator)):
        assert total(reached) <= total(reached + size * torch.randn(4, generator=generator, dtype=torch.float64)) + 1e-9


def test_distances_are_those_of_the_vectors() -> None:
    """To 2 u₁ - u₂ of u = (1, 0), (0, 1), (3, -1), which is (2, -1): √2, √8, 1.

    Of 0.1, 0.3 and 0.4 · 0.1 + 0.6 · 0.3 to the last: 0, though rounding makes its square negative.
    """
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, -1.0]], dtype=torch.float64)
    combination = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)
    assert close(distances(u @ u.T, combination), (math.sqrt(2), math.sqrt(8), 1.0))
    mean = 0.4 * 0.1 + 0.6 * 0.3
    u = torch.tensor([[0.1], [0.3], [mean]], dtype=torch.float64)
    combination = torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64)
    assert close(distances(u @ u.T, combination), (mean - 0.1, 0.3 - mean, 0.0), 1e-8)


def test_it_follows_rules_before_it_and_a_huge_update_moves_it_little() -> None:
    """FedNova with steps (1, 1, 4): τ_eff = 2 scales the triangle by (2, 2, 1/2) to ±2 and (0, 4): y = 2/√3.

    The last update 1e6 times as long changes its direction only: seen from (0, y) the corners stay 120° apart.
    """
    for far in (8.0, 8e6):
        updates = [[-1.0, 0.0], [1.0, 0.0], [0.0, far]]
        assert close(apply(updates, FedNova(), GeometricMedian(), steps=[1, 1, 4])[0], (0.0, 2 / math.sqrt(3)), 1e-6)


def test_zero_updates_and_single_clients() -> None:
    reached, capture = apply(torch.zeros(3, 2), GeometricMedian(), samples=[1, 1, 2])
    assert close(reached, (0.0, 0.0), 0.0)
    assert close(capture.cohort.weights, (0.25, 0.25, 0.5))
    assert close(apply([[3.0, -1.0]], GeometricMedian())[0], (3.0, -1.0))
    assert close(apply([[3.0, -1.0]] * 3, GeometricMedian())[0], (3.0, -1.0))
