"""Nearest-neighbour mixing, by hand in its docstring, and beside the library ByzFL."""

import pytest
import torch
from lib.hand_made import apply
from lib.toy import close
from torch import Tensor

from fl_lightning import ConfigurationError, FederatedCallback
from fl_lightning.callbacks import CoordinateMedian, GeometricMedian, Krum, NearestNeighbourMixing, TrimmedMean

ATTACKED = [
    *([9.0, -7.0, 4.0], [8.0, -9.0, 5.0], [1.0, 0.5, -1.0], [0.0, 1.0, -2.0]),
    *([2.0, 0.0, -1.5], [1.5, 2.0, 0.0], [-0.5, 1.0, -0.5]),
]

NNM = [
    *([5.0, -3.875, 1.625], [5.0, -3.875, 1.625], [0.625, 0.625, -1.25], [0.625, 0.625, -1.25]),
    *([1.125, 0.875, -1.125], [1.0, 0.875, -0.75], [0.5, 1.125, -0.875]),
]


def spread(updates: Tensor) -> float:
    return float((updates - updates.mean(0)).norm(dim=1).mean())


def test_means_of_neighbours_are_byzfls() -> None:
    """ByzFL 0.0.11, ``NNM(3)``: of seven updates, each with its nearest three."""
    _, capture = apply(ATTACKED, NearestNeighbourMixing(3))
    assert close(capture.corrected, NNM)
    assert close(capture.cohort.weights, [1 / 7] * 7)


@pytest.mark.parametrize(
    ("rule", "step"),
    [
        (CoordinateMedian(), [1.0, 0.625, -0.875]),
        (TrimmedMean(2 / 7), [0.9166666667, 0.7083333333, -0.9166666667]),
        (GeometricMedian(1000, 1e-9), [0.9227854950, 0.7105517255, -0.9869221116]),
    ],
)
def test_robust_rules_after_it_are_byzfls(rule: FederatedCallback, step: list[float]) -> None:
    """ByzFL's rule of the same name on what its ``NNM(3)`` returns."""
    assert close(apply(ATTACKED, NearestNeighbourMixing(3), rule)[0], step, 1e-6)


def test_honest_updates_come_nearer() -> None:
    """The two attackers' vectors stay where they are told from the others; without attackers, f = 0 gives the mean."""
    honest = torch.tensor(ATTACKED[2:]).double()
    _, capture = apply(ATTACKED, NearestNeighbourMixing(3))
    assert spread(capture.corrected[2:]) < spread(honest) / 2
    mean = apply(ATTACKED[2:], NearestNeighbourMixing(0), Krum(0))[0]
    assert close(mean, honest.mean(0))


def test_a_cohort_that_is_too_small_is_refused() -> None:
    told = "num_byzantine=2 needs more updates than that, got 2 in round 1: lower num_byzantine, or raise data.partici"
    with pytest.raises(ConfigurationError, match=told):
        apply(ATTACKED[:2], NearestNeighbourMixing(2))
