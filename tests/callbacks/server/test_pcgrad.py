"""PCGrad on g₁ = (2, 0), g₂ = (-1, 1), g₃ = (-1, -2), by hand, and against gradient harmonization."""

from typing import Any

import pytest
import torch
from torch import Tensor
from toy import UPDATES, Capture, GivenData, Linear, close, send, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import CAGrad, ConflictMonitor, FedAvg, GradientHarmonization, PCGrad

G1, G2, G3 = torch.tensor(UPDATES, dtype=torch.float64)  # ‖g‖² = 4, 2, 5; g₁·g₂ = g₁·g₃ = -2, g₂·g₃ = -1
# An update h that conflicts with g becomes h + (-h·g)/‖g‖² g.
ASCENDING = (
    G1 + 2 / 2 * G2 + 3 / 5 * G3,  # off g₂: (1, 1), whose product with g₃ is -3; off g₃: (0.4, -0.2)
    G2 + 2 / 4 * G1 + 2 / 5 * G3,  # off g₁: (0, 1), whose product with g₃ is -2; off g₃: (-0.4, 0.2)
    G3 + 2 / 4 * G1 + 2 / 2 * G2,  # off g₁: (0, -2), whose product with g₂ is -2; off g₂: (-1, -1)
)
DESCENDING = (
    G1 + 2 / 5 * G3 + 2.4 / 2 * G2,  # off g₃: (1.6, -0.8), whose product with g₂ is -2.4; off g₂: (0.4, 0.4)
    G2 + 1 / 5 * G3 + 2.4 / 4 * G1,  # off g₃: (-1.2, 0.6), whose product with g₁ is -2.4; off g₁: (0, 0.6)
    G3 + 1 / 2 * G2 + 3 / 4 * G1,  # off g₂: (-1.5, -1.5), whose product with g₁ is -3; off g₁: (0, -1.5)
)


@pytest.mark.parametrize(
    ("rule", "projected", "divisor", "by_hand"),
    [
        (PCGrad(order="ascending"), ASCENDING, 3, (-1 / 3, -1 / 3)),
        (PCGrad(order="descending"), DESCENDING, 3, (0.4 / 3, -0.5 / 3)),
        (PCGrad("sum", "ascending"), ASCENDING, 1, (-1.0, -1.0)),
        (PCGrad("sum", "descending"), DESCENDING, 1, (0.4, -0.5)),
    ],
)
def test_three_updates_in_conflict(rule: PCGrad, projected: Any, divisor: int, by_hand: Any) -> None:
    """Project three updates, all in conflict, in both orders; PCGrad ignores the numbers of samples, (1, 1, 2)."""
    first, second, third = projected
    step = (first + second + third) / divisor
    assert close(step, by_hand)
    model, capture = send(UPDATES, rule, samples=[1, 1, 2])
    assert close(capture.corrected, torch.stack(projected))
    assert close(model, step)


def test_two_updates_whatever_the_order() -> None:
    """(2, 0), (-1, 1) become (1, 1) and (0, 1): mean (0.5, 1)."""
    assert close(send([[2.0, 0.0], [-1.0, 1.0]], PCGrad())[0], (0.5, 1.0))


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_projects_as_gradient_harmonization_does(order: Any) -> None:
    first, second = (
        send(UPDATES, rule)[1].cohort for rule in (PCGrad(order=order), GradientHarmonization(order=order))
    )
    assert torch.equal(first.mixing, second.mixing)


@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_no_conflict_is_exactly_the_uniform_average(order: Any) -> None:
    """(1, 0), (0, 2) are orthogonal, (1, 1) agrees with both; their sum is (2, 3)."""
    updates = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]
    average = send(updates, FedAvg("uniform"), samples=[1, 1, 2])[0]
    assert torch.equal(send(updates, PCGrad(order=order), samples=[1, 1, 2])[0], average)
    assert close(send(updates, PCGrad("sum", order), samples=[1, 1, 2])[0], (2.0, 3.0), 0.0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_zero_updates_are_no_partners(reduction: Any) -> None:
    """(2, 0), (0, 0), (-1, 1): the sum is (1, 1) + (0, 1). Of zeros alone comes zero, of opposites, too."""
    factor = 1 if reduction == "sum" else 1 / 3
    model, _ = send([[2.0, 0.0], [0.0, 0.0], [-1.0, 1.0]], PCGrad(reduction))
    assert close(model, (factor, 2 * factor))
    assert close(send([[0.0, 0.0]] * 2, PCGrad(reduction))[0], (0.0, 0.0), 0.0)
    assert close(send([[0.1, 0.7], [-0.3, -2.1]], PCGrad(reduction))[0], (0.0, 0.0), 1e-15)


def test_one_client_alone_is_left_as_it_is() -> None:
    assert close(send([[1.0, -3.0]], PCGrad())[0], (1.0, -3.0), 0.0)
    assert close(send([[1.0, -3.0]], PCGrad("sum"))[0], (1.0, -3.0), 0.0)


def drawn(seed: int, *others: Any) -> Tensor:
    """(8, 8) what the projections in random order make of eight random updates."""
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    capture = Capture()
    orchestrator = FederatedOrchestrator(Linear(4), seed=seed)
    trainer(*others, PCGrad(), capture).fit(orchestrator, datamodule=GivenData(rows))
    return capture.cohort.mixing


def test_random_order_depends_on_the_seed_alone() -> None:
    assert torch.equal(drawn(1), drawn(1, ConflictMonitor()))
    assert not close(drawn(1), drawn(2))


def test_goes_before_the_rules_that_settle_weights() -> None:
    with pytest.raises(ConfigurationError, match="put PCGrad before CAGrad"):
        send(UPDATES, CAGrad(), PCGrad())


def test_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigurationError, match="reduction must be 'mean' or 'sum', got 'max'"):
        PCGrad("max")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="order must be 'random', 'ascending' or 'descending', got 'up'"):
        PCGrad(order="up")  # type: ignore[arg-type]
