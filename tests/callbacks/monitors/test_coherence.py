"""CoherenceMonitor on the updates (2, 0), (-1, 1), (-1, -2) and on clients of two classes, by hand."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from command import rows
from torch import Tensor
from toy import UPDATES, GivenData, Linear, close, trainer

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, FederatedOrchestrator
from fl_lightning.callbacks import CoherenceMonitor
from fl_lightning.callbacks.monitors.coherence import class_shares, critical_round, local_coherence
from fl_lightning.runs.folder import RunFolder

G = torch.tensor(UPDATES, dtype=torch.float64)
COUNTS = torch.tensor([[0, 0], [3, 0], [0, 3], [3, 3]])  # client 0 has no data


class Classes(GivenData):
    """Clients with given updates who hold examples of two classes."""

    def class_counts(self) -> Tensor:
        return COUNTS


class Weigh(FederatedCallback):
    """Sets the weights."""

    def __init__(self, *weights: float) -> None:
        self.weights = torch.tensor(weights, dtype=torch.float64)

    def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
        return cohort.replace(weights=self.weights)


def measured(data: GivenData, folder: Path, *rules: Any) -> dict[str, float]:
    """What a round logs in metrics.csv."""
    run = trainer(CoherenceMonitor(), *rules, logger=RunFolder(folder))
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    (row,) = rows(Path(str(run.log_dir), "metrics.csv"))
    return {name: value for name, value in row.items() if name.startswith(("coherence/", "cohort/"))}


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


@pytest.mark.parametrize("monitored_by", ["samples", "rule"])
def test_a_cohort_by_its_weights(monitored_by: str, tmp_path: Path) -> None:
    """All mix to 6 : 6. By n = (1, 1, 2) the cohort does, too: cosine 1, and pairs weigh 1/16, 1/8, 1/8.

    By λ = (1/2, 1/4, 1/4) it has (5/8, 3/8): the cosine with (1, 1) is 8 / √(34·2); pairs weigh 1/8, 1/8, 1/16.
    """
    by_rule = monitored_by == "rule"
    logged = measured(
        Classes(-torch.cat([torch.zeros(1, 2), G]), samples=[0, 1, 1, 2]),
        tmp_path,
        *([Weigh(0.5, 0.25, 0.25)] if by_rule else []),
    )
    pairs = (1 / 8, 1 / 8, 1 / 16) if by_rule else (1 / 16, 1 / 8, 1 / 8)
    cosines = (0.5**0.5, 0.2**0.5, 0.1**0.5)
    assert logged == pytest.approx(
        {
            "coherence/local": -2 / 3 * sum(p * c for p, c in zip(pairs, cosines, strict=True)),
            "coherence/heterogeneity": 8 / 68**0.5 if by_rule else 1.0,
            "cohort/share/0": 5 / 8 if by_rule else 1 / 2,
            "cohort/share/1": 3 / 8 if by_rule else 1 / 2,
        },
        abs=1e-6,
    )


def test_one_client_may_stand_for_all(tmp_path: Path) -> None:
    """It has no pair. If it is client 2, of the second class alone: the cosine of (0, 1) and (1, 1)."""
    logged = measured(Classes(torch.ones(4, 2, dtype=torch.float64), samples=[0, 0, 1, 0]), tmp_path)
    expected = {"coherence/heterogeneity": 0.5**0.5, "cohort/share/0": 0.0, "cohort/share/1": 1.0}
    assert logged == pytest.approx(expected)


def test_data_without_classes(tmp_path: Path) -> None:
    assert measured(GivenData(-G), tmp_path).keys() == {"coherence/local"}


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
    ],
)
def test_critical_round(coherence: list[float], window: int, expected: int | None) -> None:
    assert critical_round(coherence, window) == expected


@pytest.mark.parametrize("window", [1, 3, 5, 7])
def test_a_falling_line_turns_where_it_crosses_zero(window: int) -> None:
    """6.5 - r is negative from round 7 on, and the mean around a round is the value there."""
    assert critical_round([6.5 - r for r in range(1, 15)], window) == 7


@pytest.mark.parametrize("window", [0, 4, -1, 1.5, math.nan])
def test_refuses_a_window_without_a_centre(window: Any) -> None:
    with pytest.raises(ConfigurationError, match="window must be an odd number of rounds, got"):
        critical_round([1.0, -1.0], window)
