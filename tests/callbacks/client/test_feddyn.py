"""FedDyn on the toy problem, by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from resumed import assert_same
from resumed import train as train_digits
from torch import Tensor
from toy import A, B, Capture, Net, Quadratic, Same, Scheduled, ToyData, close, send, train, trainer

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedAvgM, FedDyn
from fl_lightning.engine.federation.sampling import ClientSampler

ROUND_1, ROUND_2 = (-1.11066, -0.07564), (-1.82041523694, -0.15290654176)


class InTurn(ClientSampler):
    """Given cohorts."""

    def __init__(self, *cohorts: list[int]) -> None:
        self.cohorts = cohorts

    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        return torch.tensor(self.cohorts[round - 1])


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


def test_the_second_round_of_the_toy_problem() -> None:
    """Client 0 from w = (-1.11066, -0.07564) with -λ = (0.0189, -0.0358): g = (-2.11066, 1.84872) + (0.0189, -0.0358).

    (-0.901484, -0.256932); g = (-1.901484, 1.486136) + (0.0189, -0.0358) + 0.1 (0.209176, -0.181292): (-0.71531736,
    -0.39015268). Δ = (0.39534264, -0.31451268), λ = (-0.0189, 0.0358) - 0.1 Δ. h and client 1 likewise.
    """
    rule = FedDyn(0.1)
    assert close(train(rule, rounds=2), ROUND_2)
    assert close(rule.state["lambda/0"], (-0.058434264, 0.068251268))
    assert close(rule.state["lambda/1"], (0.184942787694, -0.056742613824))
    assert close(rule.state["h"], (0.063254261847, 0.005754327088))


def test_reaches_the_minimum_of_the_uniform_objective() -> None:
    """(A₀ + A₁) w = A₀ B₀ + A₁ B₁: w = (-5/4, -1/2.5); uniform FedAvg stalls elsewhere."""
    assert close(train(FedDyn(1.0), rounds=100), (-1.25, -0.4), 1e-6)
    assert not close(train(FedAvg("uniform"), rounds=100), (-1.25, -0.4), 0.05)


def test_at_the_limit_the_dual_variables_are_the_gradients() -> None:
    """λ_i = ∇f_i(w): (1, 2) ∘ (-2.25, 0.6) and (3, 0.5) ∘ (0.75, -2.4), whose sum is zero."""
    rule = FedDyn(1.0)
    train(rule, rounds=100)
    assert close(rule.state["lambda/0"], (-2.25, 1.2), 1e-6)
    assert close(rule.state["lambda/1"], (2.25, -1.2), 1e-6)


def test_partial_participation() -> None:
    """Follow client 0 of N = 2 through two rounds of two steps each, then let client 1 take part."""
    eta, alpha = 0.1, 0.1
    w = -eta * A[0] * (0 - B[0])  # round 1: λ₀ = 0
    delta = w - eta * (A[0] * (w - B[0]) + alpha * w)
    lambda_0, h = -alpha * delta, -alpha / 2 * delta
    w_1 = delta - h / alpha
    assert close(w_1, (0.2835, -0.537))  # by hand, as the other pairs of numbers
    w = w_1 - eta * (A[0] * (w_1 - B[0]) - lambda_0)  # round 2
    w = w - eta * (A[0] * (w - B[0]) - lambda_0 + alpha * (w - w_1))
    delta = w - w_1
    assert close(delta, (0.1318464, -0.1593458))
    lambda_0, h = lambda_0 - alpha * delta, h - alpha / 2 * delta
    assert close(lambda_0, (-0.03208464, 0.05173458))
    w_2 = w_1 + delta - h / alpha
    assert close(w_2, (0.5757696, -0.9550187))
    before, rule, capture = FedDyn(0.1), FedDyn(0.1), Capture()
    assert close(in_turn(before, cohorts=[[0], [0]]), w_2)
    assert before.state.keys() == {"lambda/0", "h"}
    assert close(before.state["lambda/0"], lambda_0)
    w_3 = in_turn(rule, capture, cohorts=[[0], [0], [1]])
    delta = capture.cohort.deltas[0]
    assert torch.equal(rule.state["lambda/0"], before.state["lambda/0"])
    assert close(rule.state["lambda/1"], -alpha * delta)  # client 1 began with λ₁ = 0
    h = h - alpha / 2 * delta
    assert close(rule.state["h"], h)
    assert close(w_3, w_2 + delta - h / alpha)


class Spoil(FederatedCallback):
    """Client 1 diverges in round 2."""

    def on_client_end(self, orchestrator: FederatedOrchestrator, run: Any) -> None:
        if (run.round, run.client) == (2, 1):
            run.params.fill_(float("nan"))


def test_a_client_left_out_keeps_its_dual_variable() -> None:
    rule = FedDyn(0.1)
    with pytest.warns(UserWarning, match="client 1 is left out"):
        result = train(Spoil(), rule, rounds=2)
    assert close(rule.state["lambda/1"], (0.129966, -0.028236))
    assert close(result, in_turn(FedDyn(0.1), cohorts=[[0, 1], [0]]))


def test_zero_updates_leave_everything_at_zero() -> None:
    rule = FedDyn(0.1)
    assert torch.equal(send([[0.0, 0.0]] * 2, rule)[0], torch.zeros(2, dtype=torch.float64))
    assert all(not value.any() for value in rule.state.values())


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


def test_stop_and_resume_with_half_the_clients(tmp_path: Path) -> None:
    """Batch normalisation, dropout, server momentum, half of the clients a round: as uninterrupted, states included."""
    whole, uninterrupted, resumed = train_digits(tmp_path / "a", rule := FedDyn(), rounds=4), rule.state, FedDyn()
    stopped = train_digits(tmp_path / "b", FedDyn(), rounds=2)
    assert_same(whole, train_digits(tmp_path / "b", resumed, rounds=4, resume=stopped))
    assert uninterrupted.keys() == resumed.state.keys()
    assert len(uninterrupted) > 4
    assert all(torch.equal(uninterrupted[name], resumed.state[name]) for name in uninterrupted)


@pytest.mark.parametrize("make", [Net, Scheduled])
@pytest.mark.parametrize("flags", [{}, {"precision": "bf16-mixed"}])
@pytest.mark.parametrize("settings", [{}, {"gradient_clip_val": 0.1}])
def test_goes_with_every_local_setting(make: Any, flags: Any, settings: Any) -> None:
    models = []
    for rules in ([FedDyn(0.1)], []):
        orchestrator = FederatedOrchestrator(make(), local_epochs=2, on_bad_update="raise", **settings)
        trainer(*rules, rounds=2, **flags).fit(orchestrator, datamodule=Same())
        models.append(orchestrator.params.clone())
    assert bool(models[0].isfinite().all())
    assert not torch.allclose(*models, atol=1e-4)


def released(alpha: float, cohorts: list[list[int]]) -> tuple[list[float], list[list[float]], list[float]]:
    """T under FedDyn's released code: the cloud model, the sums of each client's updates, and each client's α.

    Client i of N = 2 takes α / (N n_i / Σ n), and its gradient is ∇f_i + α_i (θ - w + sum of its updates). The cloud
    model is the cohort's mean plus the sum of all clients' sums, divided by N.
    """
    eta, sizes, steps = 0.1, (1, 3), (2, 3)
    alphas = [alpha / (2 * size / 4) for size in sizes]
    cloud, sums = [0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]]
    for cohort in cohorts:
        models = []
        for k in cohort:
            theta = list(cloud)
            for _ in range(steps[k]):
                for i in range(2):
                    gradient = float(A[k, i]) * (theta[i] - float(B[k, i]))
                    theta[i] -= eta * (gradient + alphas[k] * (theta[i] - cloud[i] + sums[k][i]))
            models.append(theta)
        for k, theta in zip(cohort, models, strict=True):
            sums[k] = [s + t - c for s, t, c in zip(sums[k], theta, cloud, strict=True)]
        cloud = [sum(m[i] for m in models) / len(models) + (sums[0][i] + sums[1][i]) / 2 for i in range(2)]
    return cloud, sums, alphas


@pytest.mark.parametrize("cohorts", [[[0, 1]] * 3, [[0], [1], [0]], [[1], [0, 1], [1]]], ids=str)
def test_alpha_by_size_is_the_released_code(cohorts: list[list[int]]) -> None:
    """λ_i is -α_i times the sum of client i's updates."""
    rule = FedDyn(0.1, alpha_by_size=True)
    cloud, sums, alphas = released(0.1, cohorts)
    assert close(in_turn(rule, cohorts=cohorts), cloud)
    assert not close(in_turn(FedDyn(0.1), cohorts=cohorts), cloud, 1e-3)
    for k in (0, 1):
        assert close(rule.state[f"lambda/{k}"], [-alphas[k] * entry for entry in sums[k]])


def test_alpha_by_size_reaches_the_minimum_of_the_objective_by_size() -> None:
    """n_i / α is 1 / α_i up to a factor, so Σ n_i ∇f_i = 0: w = (1·1 - 3·3·2, -1·2 + 3·0.5·2) / (1 + 9, 2 + 1.5)."""
    assert close(train(FedDyn(1.0, alpha_by_size=True), rounds=150), (-1.7, 1 / 3.5), 1e-6)


def test_tells_fednova_of_each_clients_alpha() -> None:
    """α_i = 0.1 / 0.5 and 0.1 / 1.5: 1 + (1 - 0.02), and 1 + x + x² with x = 1 - 0.1 / 15."""
    capture = Capture()
    train(FedDyn(0.1, alpha_by_size=True), capture)
    x = 1 - 0.1 / 15
    assert close(capture.cohort.normalizers, (1.98, 1 + x + x * x))


@pytest.mark.parametrize("alpha", [-0.1, 0.0, float("nan"), float("inf")])
def test_refuses_an_alpha_out_of_range(alpha: float) -> None:
    with pytest.raises(ConfigurationError, match=f"alpha must be positive and finite, got {alpha}"):
        FedDyn(alpha)
