"""FedGAM-CV on the toy problem: FedGAM's gradients and SCAFFOLD's control variates, which have tests of their own."""

from typing import Any

import pytest
import torch
from lib.toy import (
    ETA,
    SEEN,
    STEPS,
    A,
    B,
    Capture,
    DecaysEverySecondStep,
    GivenData,
    InTurn,
    Linear,
    Quadratic,
    ToyData,
    close,
    train,
    trainer,
)
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedGAM, FedGAMCV, Scaffold

ZERO = torch.zeros(2, dtype=torch.float64)
ROWS = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-2.0, 6.0]], dtype=torch.float64)


def variates(rule: Scaffold, clients: int = 2) -> Tensor:
    """c, c_0, c_1, …, one a row."""
    return torch.stack([rule.state["c"], *(rule.state[f"c/{k}"] for k in range(clients))])


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_round_1_is_fedgam(variant: Any) -> None:
    """There is nothing to correct yet. c_i = -Δ_i/(0.1 τ_i), τ = (2, 3)."""
    rule, capture = FedGAMCV(variant), Capture()
    assert torch.equal(train(rule, capture), train(FedGAM(variant)))
    own = -capture.cohort.deltas / torch.tensor([[0.2], [0.3]], dtype=torch.float64)
    assert close(variates(rule), torch.vstack([own.mean(0), own]))


def test_two_rounds_of_the_paper() -> None:
    """c_0 = -(0.1907269823, -0.3613047405)/0.2 = (-0.9536349115, 1.8065237026), from FedGAM's first round.

    Round 2, client 0's first coordinate from -0.5634229137: the gradients of the loss are corrected by c - c_0 =
    1.7191372272 + 0.9536349115 = 2.6727721387 and c_0⁺ is the mean of eq. 19's: -1.6251018069.
    """
    rule = FedGAMCV("paper")
    assert close(train(rule), (-0.563422913728324, -0.03748467939076475))
    ours = ((1.719137227182103, 0.4260362150668153), (-0.9536349114738587, 1.806523702585597))
    assert close(variates(rule), (*ours, (4.391909365838065, -0.9544512724519663)))
    assert close(train(rule, rounds=2), (-0.8491118234940582, -0.13817617050068248))
    ours = ((1.1269080878500302, 0.4184560513282113), (-1.625101806870466, 1.8773939732896954))
    assert close(variates(rule), (*ours, (3.8789179825705262, -1.0404818706332728)))


def test_released_gradient_with_the_papers_control() -> None:
    """One local step: G_i = (-2.0650831413, 4.4606485615), (12.7183432328, -2.0054678640) at 0 (FedGAM's
    tests), c_i = G_i, c their mean; w = -0.1 c. From there both clients follow G_i' + c - c_i, and c_i⁺ = G_i'.
    """
    rule, capture = FedGAMCV("released", control="paper"), Capture()
    train(rule, capture, rounds=2, local_steps=1)
    first = torch.tensor(((-2.0650831413, 4.4606485615), (12.7183432328, -2.0054678640)), dtype=torch.float64)
    assert close(-capture.cohorts[0].deltas / 0.1, first)
    assert close(capture.cohorts[1].anchor, -0.1 * first.mean(0))
    second = -capture.cohorts[1].deltas / 0.1 - first.mean(0) + first
    assert close(variates(rule), torch.vstack([second.mean(0), second]))


@pytest.mark.parametrize("sgd", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_constant_gradients_are_found_exactly(sgd: Any) -> None:
    """The gradient r_k wherever it is: FedGAM follows 2 r_k as released, 1.004 r_k as in the paper."""
    for variant, factor in (("released", 2.0), ("paper", 1.004)):
        rule = FedGAMCV(variant, control="paper")  # type: ignore[arg-type]
        orchestrator = FederatedOrchestrator(Linear(2, lr=0.1, **sgd))
        trainer(rule, rounds=3).fit(orchestrator, datamodule=GivenData(ROWS, steps=[2, 5, 3]))
        assert close(variates(rule, 3), factor * torch.vstack([ROWS.mean(0), ROWS]))


COHORTS = [[0, 1], [1], [0]]


def released_code(momentum: float) -> tuple[Tensor, Tensor]:
    """Follow the released code through three rounds of T; the global model, and c, c_0, c_1."""

    def ahead(at: Tensor, along: Tensor, length: float) -> Tensor:
        return at + length * along / along.norm()

    def gam(k: int, at: Tensor) -> Tensor:
        g_0 = A[k] * (at - B[k])
        g_1 = A[k] * (ahead(at, g_0, 0.02) - B[k])
        there = ahead(at, g_1 - g_0, 0.2)
        g_2 = A[k] * (there - B[k])
        total, plain = g_1 + A[k] * (ahead(there, g_2, 0.02) - B[k]), g_0 + g_2
        return total - 0.03 * (plain - (plain @ total) / (total @ total) * total)

    w, c, own = ZERO, ZERO, [ZERO, ZERO]
    for cohort in COHORTS:
        ends, gains = [], ZERO
        for k in cohort:
            x, velocity = w, ZERO
            for _ in range(STEPS[k]):
                velocity = momentum * velocity + gam(k, x)
                x = x - ETA * velocity - ETA * (c - own[k])
            renewed = own[k] - c + (w - x) / (STEPS[k] * ETA)
            gains, own[k] = gains + renewed - own[k], renewed
            ends.append(x)
        w, c = torch.stack(ends).mean(0), c + gains / 2
    return w, torch.stack([c, *own])


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_released_code(momentum: float, at_once: int) -> None:
    """Correct the weights after each step, divide by τ_k, and add a half of the changes of one of two clients."""
    expected = released_code(momentum)
    for control in (None, "paper"):
        rule = FedGAMCV(control=control)  # type: ignore[arg-type]
        orchestrator = FederatedOrchestrator(Quadratic(momentum), clients_at_once=at_once, on_bad_update="raise")
        data = ToyData(participation=2, sampler=InTurn(*COHORTS))
        trainer(rule, rounds=3).fit(orchestrator, datamodule=data)
        assert SEEN[orchestrator].group_size == at_once
        found = orchestrator.params, variates(rule)
        assert all(map(close, found, expected)) == (control is None)


def test_released_corrections_are_not_clipped() -> None:
    """One step of η = 1: gradients 2 r_k are clipped to the norm 1, corrections c - c_k are not.

    Round 1: both clients move by -u_k, u = (1, 0), (0, 1), so c_k = u_k and c = (0.5, 0.5). Round 2: client k moves by
    -u_k - (c - u_k) = -c, so that c_k⁺ = u_k - c + c.
    """
    rule, capture = FedGAMCV(), Capture()
    orchestrator = FederatedOrchestrator(Linear(2), gradient_clip_val=1.0)
    trainer(rule, capture, rounds=2).fit(orchestrator, datamodule=GivenData(ROWS[:2]))
    assert close(capture.cohorts[1].deltas, [[-0.5, -0.5], [-0.5, -0.5]], 1e-5)  # PyTorch adds 1e-6 to the norm
    assert close(variates(rule), [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]], 1e-5)


def test_released_corrections_take_the_first_rate_of_a_schedule() -> None:
    """η = 1, then 0.1 from the third step on; gradients 2 r_k, four steps: Δ_k = -4.4 r_k, c_k = 1.1 r_k.

    In round 2, each of the four steps moves client k by -(c - c_k) as well: Δ_k = -4.4 r_k - 4 (c - c_k).
    """
    rule, capture = FedGAMCV(), Capture()
    orchestrator = FederatedOrchestrator(Decaying(2))
    trainer(rule, capture, rounds=2).fit(orchestrator, datamodule=GivenData(ROWS, steps=[4, 4, 4]))
    mean = ROWS.mean(0)
    assert close(capture.cohorts[0].deltas, -4.4 * ROWS)
    assert close(capture.cohorts[1].deltas, -4.4 * ROWS - 4.4 * (mean - ROWS))
    assert close(variates(rule, 3), 1.1 * torch.vstack([mean, ROWS]))


class Decaying(DecaysEverySecondStep, Linear):
    pass


def test_partial_participation_divides_by_the_cohort() -> None:
    """K = 2, N = 3, α = 0, η = 1, a step each. Round 1: w = -(r_0 + r_1)/2 = (-0.5, -1.5), c = (r_0 + r_1)/2.

    Round 2: client 1 moves by -c, client 2 by -(r_2 + c): w = (-0.5, -1.5) - (0.5, 1.5) - (-1, 3) = (0, -6). c gains
    r_2/2: (-0.5, 4.5). Client 0 keeps c_0.
    """
    rule, orchestrator = FedGAMCV("paper", alpha=0.0), FederatedOrchestrator(Linear(2))
    data = GivenData(ROWS, participation=2, sampler=InTurn([0, 1], [1, 2]))
    trainer(rule, rounds=2).fit(orchestrator, datamodule=data)
    assert close(orchestrator.params, (0, -6))
    assert close(variates(rule, 3), torch.vstack([torch.tensor([-0.5, 4.5]), ROWS]))


def test_the_default_is_what_the_papers_results_come_from() -> None:
    assert FedGAMCV().gam.variant == FedGAMCV().control == "released"
