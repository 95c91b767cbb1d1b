"""FedDyn on the toy problem, by hand."""

from collections.abc import Sequence

import pytest
import torch
from lib.toy import ETA, STEPS, A, B, Capture, InTurn, Quadratic, ToyData, close, train, trainer
from torch import Tensor

from fl_lightning import FederatedCallback, FederatedOrchestrator
from fl_lightning.callbacks import FaultInjection, FedAvgM, FedDyn

ROUND_1, ROUND_2 = (-1.11066, -0.07564), (-1.82041523694, -0.15290654176)


def in_turn(*rules: FederatedCallback, cohorts: list[list[int]]) -> Tensor:
    """The global model of T after rounds with given cohorts."""
    orchestrator = FederatedOrchestrator(Quadratic())
    data = ToyData(participation=max(map(len, cohorts)), sampler=InTurn(*cohorts))
    trainer(*rules, rounds=len(cohorts)).fit(orchestrator, datamodule=data)
    return orchestrator.params.clone()


def test_the_first_round_of_the_toy_problem() -> None:
    """α = 0.1, λ = 0. Client 0: (0.1, -0.2), then g = (-0.9, 1.6) + 0.1 (0.1, -0.2) = (-0.89, 1.58): (0.189, -0.358).

    Client 1: (-0.6, 0.1); g = (4.2, -0.95) + 0.1 (-0.6, 0.1): (-1.014, 0.194); g = (2.958, -0.903) + 0.1 (-1.014,
    0.194): (-1.29966, 0.28236). h = -0.05 (-1.11066, -0.07564), and w = (-0.55533, -0.03782) - h/0.1.
    """
    rule, capture = FedDyn(0.1), Capture()
    assert close(train(rule, capture), ROUND_1)
    assert close(torch.stack(capture.params), ((0.189, -0.358), (-1.29966, 0.28236)))
    assert close(rule.state["lambda/0"], (-0.0189, 0.0358))
    assert close(rule.state["lambda/1"], (0.129966, -0.028236))
    assert close(rule.state["h"], (0.055533, 0.003782))


def test_reaches_the_minimum_of_the_uniform_objective() -> None:
    """(A₀ + A₁) w = A₀ B₀ + A₁ B₁: w = (-5/4, -1/2.5); uniform FedAvg stalls elsewhere.

    There λ_i = ∇f_i(w): (1, 2) ∘ (-2.25, 0.6) and (3, 0.5) ∘ (0.75, -2.4), whose sum is zero.
    """
    rule = FedDyn(1.0)
    assert close(train(rule, rounds=40), (-1.25, -0.4), 1e-3)
    assert close(rule.state["lambda/0"], (-2.25, 1.2), 1e-3)
    assert close(rule.state["lambda/1"], (2.25, -1.2), 1e-3)


def test_a_client_left_out_keeps_its_dual_variable() -> None:
    rule = FedDyn(0.1)
    with pytest.warns(UserWarning, match="client 1 is left out"):
        result = train(FaultInjection("nan", [1], [2]), rule, rounds=2)
    assert close(rule.state["lambda/1"], (0.129966, -0.028236))
    assert close(result, in_turn(FedDyn(0.1), cohorts=[[0, 1], [0]]))


def test_tells_fednova_of_its_proximal_term() -> None:
    """τ = 2, 3; η α = 0.01: 1 + 0.99 and 1 + 0.99 + 0.99²."""
    capture = Capture()
    train(FedDyn(0.1), capture)
    assert close(capture.cohort.normalizers, (1.99, 2.9701))


def test_server_momentum_takes_in_the_dual_step_where_it_comes_later() -> None:
    """β = 0.5; in the first round half of the step is the mean update, half -h/α."""
    first, second = torch.tensor(ROUND_1, dtype=torch.float64), torch.tensor(ROUND_2, dtype=torch.float64)
    assert close(train(FedDyn(0.1), FedAvgM(0.5), rounds=2), second + 0.5 * first)
    assert close(train(FedAvgM(0.5), FedDyn(0.1), rounds=2), second + 0.25 * first)


def released(alphas: Sequence[float], cohorts: list[list[int]]) -> tuple[list[float], list[list[float]]]:
    """T under FedDyn's released code: the cloud model, and the sums of each client's updates.

    The gradient of client i of N = 2 is ∇f_i + α_i (θ - w + sum of its updates). The cloud model is the cohort's mean
    plus the sum of all clients' sums, divided by N.
    """
    cloud, sums = [0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]]
    for cohort in cohorts:
        models = []
        for k in cohort:
            theta = list(cloud)
            for _ in range(STEPS[k]):
                for i in range(2):
                    gradient = float(A[k, i]) * (theta[i] - float(B[k, i]))
                    theta[i] -= ETA * (gradient + alphas[k] * (theta[i] - cloud[i] + sums[k][i]))
            models.append(theta)
        for k, theta in zip(cohort, models, strict=True):
            sums[k] = [s + t - c for s, t, c in zip(sums[k], theta, cloud, strict=True)]
        cloud = [sum(m[i] for m in models) / len(models) + (sums[0][i] + sums[1][i]) / 2 for i in range(2)]
    return cloud, sums


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("cohorts", [[[0, 1]] * 2, [[0], [1], [0]], [[1], [0, 1], [1]]], ids=str)
def test_is_the_released_code(cohorts: list[list[int]], by_size: bool) -> None:
    """λ_i is -α_i times the sum of client i's updates; by size, α_i = α / (N n_i / Σ n) with n = (1, 3)."""
    rule, alphas = FedDyn(0.1, alpha_by_size=by_size), [0.1 / 0.5, 0.1 / 1.5] if by_size else [0.1, 0.1]
    cloud, sums = released(alphas, cohorts)
    assert close(in_turn(rule, cohorts=cohorts), cloud)
    assert not close(in_turn(FedDyn(0.1, not by_size), cohorts=cohorts), cloud, 1e-3)
    for k in (0, 1):
        assert close(rule.state[f"lambda/{k}"], [-alphas[k] * entry for entry in sums[k]])


def test_alpha_by_size_reaches_the_minimum_of_the_objective_by_size() -> None:
    """n_i / α is 1 / α_i up to a factor, so Σ n_i ∇f_i = 0: w = (1·1 - 3·3·2, -1·2 + 3·0.5·2) / (1 + 9, 2 + 1.5)."""
    assert close(train(FedDyn(1.0, alpha_by_size=True), rounds=40), (-1.7, 1 / 3.5), 1e-4)


def test_tells_fednova_of_each_clients_alpha() -> None:
    """α_i = 0.1 / 0.5 and 0.1 / 1.5: 1 + (1 - 0.02), and 1 + x + x² with x = 1 - 0.1 / 15."""
    capture = Capture()
    train(FedDyn(0.1, alpha_by_size=True), capture)
    x = 1 - 0.1 / 15
    assert close(capture.cohort.normalizers, (1.98, 1 + x + x * x))
