"""Bucketing, by hand in its docstring, and beside the library ByzFL."""

import pytest
import torch
from lib.hand_made import apply
from lib.rules import run
from lib.toy import close

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server
from fl_lightning.callbacks import (
    ALIE,
    Bucketing,
    Bulyan,
    CentredClipping,
    ConflictMonitor,
    CoordinateMedian,
    DnC,
    FedAvgM,
    GeometricMedian,
    Krum,
    NearestNeighbourMixing,
    NormClipping,
    Scaffold,
    TrimmedMean,
)

ATTACKED = [
    *([9.0, -7.0, 4.0], [8.0, -9.0, 5.0], [1.0, 0.5, -1.0], [0.0, 1.0, -2.0]),
    *([2.0, 0.0, -1.5], [1.5, 2.0, 0.0], [-0.5, 1.0, -0.5]),
]

BUCKETS = [[4.75, -3.5, 2.5], [0.75, 0.5, -1.0], [5.0, -3.25, 1.5], [0.0, 1.0, -2.0]]


class Seen(FederatedCallback):
    """Keeps the cohort of the round where it stands in the chain."""

    anonymous = True
    rows: torch.Tensor

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        self.rows = cohort.mixing @ cohort.deltas
        return cohort


def test_buckets_are_byzfls() -> None:
    """ByzFL 0.0.11, ``Bucketing(2)``, given the permutation that the seed draws: 5 1 | 4 6 | 2 0 | 3."""
    seen = Seen()
    _, capture = apply(ATTACKED, Bucketing(2), seen)
    assert close(seen.rows, BUCKETS)
    assert close(capture.cohort.weights, [1 / 8, 1 / 8, 1 / 8, 1 / 4, 1 / 8, 1 / 8, 1 / 8])  # client 3 is alone


@pytest.mark.parametrize(
    ("rule", "step"),
    [
        (CoordinateMedian(), [2.75, -1.375, 0.25]),
        (TrimmedMean(0.25), [2.75, -1.375, 0.25]),
        (GeometricMedian(1000, 1e-9), [1.8455897834, -0.5765525942, -0.3260291679]),
    ],
)
def test_robust_rules_after_it_are_byzfls(rule: FederatedCallback, step: list[float]) -> None:
    """ByzFL's rule of the same name on what its ``Bucketing(2)`` returns."""
    assert close(apply(ATTACKED, Bucketing(2), rule)[0], step, 1e-4)


def test_buckets_of_one_are_the_clients() -> None:
    for rule in (Krum(2, 3), TrimmedMean(0.2), CoordinateMedian()):
        assert close(apply(ATTACKED, Bucketing(1), rule)[0], apply(ATTACKED, rule)[0])


@pytest.mark.parametrize(
    "rule",
    [
        Bulyan(0),
        CentredClipping(1.0),
        CoordinateMedian(),
        DnC(1),
        GeometricMedian(),
        Krum(0),
        NearestNeighbourMixing(1),
        NormClipping(),
        TrimmedMean(0.2),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_every_robust_rule_takes_buckets(rule: FederatedCallback) -> None:
    """Of six clients in buckets of two, with an attack before, a monitor and momentum after."""
    assert run(ALIE(1), Bucketing(2), rule, ConflictMonitor(), FedAvgM()).params.isfinite().all()


def test_a_rule_that_needs_single_clients_is_refused() -> None:
    told = (
        r"^Bucketing and Scaffold do not go together: Bucketing hands on means of several clients, not single ones; p"
    )
    with pytest.raises(ConfigurationError, match=told):
        run(Bucketing(2), Scaffold())
