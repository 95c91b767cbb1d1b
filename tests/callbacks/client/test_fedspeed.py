"""FedSpeed by hand, beside the released code, and beside the chain of FedDyn and FedSAM."""

from typing import Any

import pytest
import torch
from lib.toy import ETA, A, B, Capture, GivenData, InTurn, Linear, Quadratic, ToyData, close, train, trainer
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedDyn, FedSAM, FedSpeed

PART = ([0, 1], [0], [1], [0, 1])


def fit(*rules: Any, at_once: int = 1) -> Tensor:
    """The model after four rounds of T, three local steps each, in two of which one client takes part."""
    orchestrator = FederatedOrchestrator(Quadratic(), local_steps=3, clients_at_once=at_once)
    trainer(FedAvg("uniform"), *rules, rounds=4).fit(orchestrator, datamodule=ToyData(sampler=InTurn(*PART)))
    return orchestrator.params.clone()


@pytest.mark.parametrize("at_once", [1, 2])
def test_two_rounds(at_once: int) -> None:
    """1/λ = ½, one step of 2, whose gradient is the same uphill.

    Round 1: w_k = s_k = 2, and 4 is sent. Round 2, at w = 4: the gradient -2 + ½ · 2 = -1, to 5; s_k = 3, 5 + 3 - 4
    is sent.
    """
    rule, capture = FedSpeed(penalty=0.5, rho=1.0), Capture()
    orchestrator = FederatedOrchestrator(Linear(1), clients_at_once=at_once)
    trainer(rule, capture, rounds=2).fit(orchestrator, datamodule=GivenData(torch.full((2, 1), -2.0).double()))
    assert [cohort.deltas.tolist() for cohort in capture.cohorts] == [[[4.0], [4.0]], [[4.0], [4.0]]]
    assert {name: float(value) for name, value in rule.state.items()} == {"moved/0": 3.0, "moved/1": 3.0}


@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_algorithm_1(alpha: float) -> None:
    """The paper's lines with λ = 10 and ρ = 0.1 in its own variables: ĝ loses (w_k - w)/λ, w_k - λ ĝ is averaged."""
    lam, rho = 10.0, 0.1
    w, correction = torch.zeros(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    for cohort in PART:
        sent = []
        for k in cohort:
            x = w.clone()
            for _ in range(3):
                first = A[k] * (x - B[k])
                second = A[k] * (x + rho * first / first.norm() - B[k])
                x = x - ETA * ((1 - alpha) * first + alpha * second - correction[k] + (x - w) / lam)
            correction[k] -= (x - w) / lam
            sent.append(x - lam * correction[k])
        w = torch.stack(sent).mean(0)
    assert close(fit(FedSpeed(1 / lam, rho, alpha)), w, 1e-12)
    assert close(fit(FedSpeed(1 / lam, rho, alpha), at_once=2), w, 1e-12)


def test_the_released_code_is_the_chain_of_feddyn_and_fedsam() -> None:
    """FedSpeed of woodenchild95/FL-Simulator, run apart on T.

    There the cohort's mean gains the mean s_k of all clients, and not of the cohort.
    """
    released = (-1.81567697523128, -0.5318404431852476)
    assert close(fit(FedDyn(0.1), FedSAM(0.1)), released, 1e-7)  # 1e-7 is added to norms there
    assert not close(fit(FedSpeed(0.1, 0.1)), released, 1e-3)


def test_with_all_clients_the_rule_is_the_released_code() -> None:
    """FedSpeed of woodenchild95/FL-Simulator, run apart on T, three rounds of both clients."""
    ours = train(FedAvg("uniform"), FedSpeed(0.1, 0.1), rounds=3, local_steps=3)
    assert close(ours, (-1.7206747589268845, -0.5122576924260107), 1e-7)


def test_the_limit_is_the_minimum_of_the_sum() -> None:
    """Σ A_k ∘ (w - B_k) = 0, as if the clients' data lay in one place; FedAvg ends elsewhere."""
    best = (A * B).sum(0) / A.sum(0)
    settings: dict[str, Any] = {"rounds": 200, "local_steps": 3}
    assert close(train(FedAvg("uniform"), FedSpeed(1.0, rho=0.0), **settings), best, 1e-8)
    assert not close(train(FedAvg("uniform"), **settings), best, 1e-2)
