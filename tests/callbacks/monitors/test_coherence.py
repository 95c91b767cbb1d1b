"""CoherenceMonitor on the updates (2, 0), (-1, 1), (-1, -2) and on clients of two classes, by hand."""

from typing import Any

import pytest
import torch
from lib.hand_made import serve
from lib.toy import UPDATES, GivenData, close
from torch import Tensor

from fl_lightning import Cohort, FederatedCallback, Server
from fl_lightning.callbacks import CoherenceMonitor
from fl_lightning.callbacks.monitors.coherence import class_shares, critical_round, local_coherence

G = torch.tensor(UPDATES, dtype=torch.float64)
ALL = torch.cat([torch.zeros(1, 2), G])  # client 0 has no data


class Classes(GivenData):
    """Clients with given updates who hold examples of two classes."""

    def class_counts(self) -> Tensor:
        return torch.tensor([[0, 0], [3, 0], [0, 3], [3, 3]])


class Weigh(FederatedCallback):
    """Sets the weights."""

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.replace(weights=torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))


def test_local_coherence() -> None:
    """Cosines -1/√2, -1/√5, -1/√10; λ = (1/2, 1/4, 1/4): pairs weigh 1/8, 1/8, 1/16, twice each, over m = 3.

    Of m equal updates of equal weight, m (m - 1) ordered pairs of 1/m² over m.
    """
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    expected = -2 / 3 * (0.5**0.5 / 8 + 0.2**0.5 / 8 + 0.1**0.5 / 16)
    assert local_coherence(G @ G.T, weights) == pytest.approx(expected)
    assert local_coherence((5 * G) @ (5 * G).T, weights) == pytest.approx(expected)
    for m in (2, 10):
        equal = torch.full((m,), 1 / m, dtype=torch.float64)
        assert local_coherence(torch.ones(m, m, dtype=torch.float64), equal) == pytest.approx((m - 1) / m**2)


def test_class_shares() -> None:
    assert close(class_shares(torch.tensor([[1, 3], [0, 0]])), [[0.25, 0.75], [0, 0]])


@pytest.mark.parametrize(
    ("rules", "pairs", "heterogeneity", "share"),
    [([], (1 / 16, 1 / 8, 1 / 8), 1.0, 1 / 2), ([Weigh()], (1 / 8, 1 / 8, 1 / 16), 8 / 68**0.5, 5 / 8)],
)
def test_a_cohort_by_its_weights(rules: Any, pairs: Any, heterogeneity: float, share: float) -> None:
    """All mix to 6 : 6. By n = (1, 1, 2) the cohort does, too: cosine 1, and pairs weigh 1/16, 1/8, 1/8.

    By λ = (1/2, 1/4, 1/4) it has (5/8, 3/8): the cosine with (1, 1) is 8 / √(34·2); pairs weigh 1/8, 1/8, 1/16.
    """
    server, _ = serve(ALL, CoherenceMonitor(), *rules, samples=[0, 1, 1, 2], data=Classes)
    local = -2 / 3 * sum(p * c for p, c in zip(pairs, (0.5**0.5, 0.2**0.5, 0.1**0.5), strict=True))
    expected = {"coherence/local": local, "coherence/heterogeneity": heterogeneity}
    expected |= {"cohort/share/0": share, "cohort/share/1": 1 - share}
    assert {name: server.logged[name] for name in expected} == pytest.approx(expected)


class Balanced(GivenData):
    """Clients of two classes whose shares have the variances 1/16, 1/16, 1/4 and 1/4; the last client has no data."""

    def class_counts(self) -> Tensor:
        return torch.tensor([[3, 1], [2, 6], [4, 0], [0, 2], [0, 0]])


@pytest.mark.parametrize(
    ("cohorts", "size", "balance", "product", "spread"),
    [
        ([[0, 1, 2, 3]], 1.0, 3 / 19**0.5, 388 / (19 * 9136) ** 0.5, 19**0.5 / 36),
        ([[0, 2], [2, 3]], -10 / 494**0.5, -3 / 26**0.5, -328 / (26 * 9136) ** 0.5, 26**0.5 / 12),
    ],
)
def test_halves_by_balance_and_what_the_weights_follow(
    cohorts: Any, size: float, balance: float, product: float, spread: float
) -> None:
    """Clients 0 and 1 have the cosine -1/√2, 2 and 3 the cosine 1; 1 / Var is (16, 16, 4, 4), n = (4, 8, 4, 2).

    n less its mean is (-1/2, 7/2, -1/2, -5/2), of norm √19, and 3 its product with (1, 1, -1, -1) / 2. In two rounds
    the weights sum to (1/2, 0, 7/6, 1/3), less their mean (0, -1/2, 2/3, -1/6), of norm √26 / 6. Their products are
    -1/2 · 7/2 - 2/3 · 1/2 + 1/6 · 5/2 = -5/3 and -1/2; √26 √19 = √494. n / Var is (64, 128, 16, 8), less its mean (10,
    74, -38, -46), of norm √9136; its products are -5 + 259 + 19 + 115 = 388 and -37 - 76/3 + 23/3 = -164/3. In one
    round the weights are n / 18.
    """
    updates = torch.tensor([[2.0, 0.0], [-1.0, 1.0], [-1.0, -2.0], [-2.0, -4.0], [0.0, 0.0]]).double()
    settings: dict[str, Any] = {"samples": [4, 8, 4, 2, 0], "data": Balanced}
    server, _ = serve(updates, CoherenceMonitor(), cohorts=cohorts, rounds=len(cohorts), **settings)
    expected = {"weights/size": size, "weights/balance": balance, "weights/product": product, "weights/spread": spread}
    if len(cohorts) == 1:
        expected |= {"coherence/balanced": -(0.5**0.5), "coherence/imbalanced": 1.0}
    names = ("weights/", "coherence/balanced", "coherence/imbalanced")
    assert {name: value for name, value in server.logged.items() if name.startswith(names)} == pytest.approx(expected)


def test_no_correlation_with_what_does_not_vary() -> None:
    """Clients 1, 2 and 3 have 3, 3 and 6 examples; the last one's classes are equally many, of variance 0."""
    server, _ = serve(ALL, CoherenceMonitor(), samples=[0, 1, 1, 2], data=Classes)
    assert server.logged["weights/size"] == pytest.approx(1.0)
    assert "weights/balance" not in server.logged


def test_one_client_may_stand_for_all() -> None:
    """It has no pair. If it is client 2, of the second class alone: the cosine of (0, 1) and (1, 1)."""
    server, _ = serve(ALL, CoherenceMonitor(), cohorts=[[2]], data=Classes)
    expected = {"coherence/heterogeneity": 0.5**0.5, "cohort/share/0": 0.0, "cohort/share/1": 1.0}
    assert {name: server.logged[name] for name in expected} == pytest.approx(expected)
    assert "coherence/local" not in server.logged


def test_data_without_classes() -> None:
    server, _ = serve(G, CoherenceMonitor())
    assert {name for name in server.logged if name.startswith("coh")} == {"coherence/local"}


@pytest.mark.parametrize(
    ("coherence", "window", "expected"),
    [
        ([2, 1, -1, 1], 1, 3),
        ([-1, 2, -1], 1, 3),  # negative before it was ever positive: no turn
        ([-1, -2, -3], 1, None),
        ([1, 0, 0], 1, None),  # zero is not negative
        ([3, 2, -1, 1, -3, -2, -1], 3, 4),  # means 2.5, 4/3, 2/3, -1
        ([3, 2, -1, 1], 3, None),  # round 4 waits for the one after it
        ([1, 1, -9, 1, 1, 1, 1], 5, None),  # means -7/3, -1.5, -1, -1, -1: never positive before
        ([9, 1, -2, 1, 1, 1, 1], 5, None),  # one bad round: means 8/3, 9/4, 2, 0.4, 0.4
        ([], 5, None),
        ([6.5 - r for r in range(1, 15)], 7, 7),  # of a line, the mean around a round is the value there
    ],
)
def test_critical_round(coherence: list[float], window: int, expected: int | None) -> None:
    assert critical_round(coherence, window) == expected
