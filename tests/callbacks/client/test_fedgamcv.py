"""FedGAM-CV on the toy problem: FedGAM's gradients and SCAFFOLD's control variates, which have tests of their own."""

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from toy import SEEN, Capture, DecaysEverySecondStep, GivenData, InTurn, Linear, close, train, trainer

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FedGAM, FedGAMCV, Scaffold

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


class Ellipses(LightningModule):
    """f_k(w) = Σ a (w - b)² / 2, under SGD with momentum and weight decay; a batch is one row (a, b)."""

    def __init__(self, **sgd: float) -> None:
        super().__init__()
        self.sgd, self.w = sgd, nn.Parameter(torch.tensor([0.5, -1.5], dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        a, b = batch
        return (a * (self.w - b) ** 2 / 2).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), **self.sgd)


class Bowls(FederatedDataModule):
    """Client k's objective, in each of 3 + k batches; two of three clients a round."""

    num_clients = 3
    bends = ((1.0, 2.0), (3.0, 0.5), (0.7, 1.1))
    centres = ((1.0, -1.0), (-2.0, 2.0), (0.3, 4.0))

    def __init__(self) -> None:
        super().__init__(batch_size=1, participation=2, sampler=InTurn([0, 1], [1, 2]))

    def client_dataset(self, client: int) -> TensorDataset:
        rows = (torch.tensor(each[client], dtype=torch.float64) for each in (self.bends, self.centres))
        return TensorDataset(*(row.expand(3 + client, 2) for row in rows))


def released_code(rounds: int, lr: float, momentum: float, decay: float) -> tuple[list[float], list[list[float]]]:
    """Follow the released code through rounds of ``Bowls``, in plain loops; return w, and c, c_0, c_1, c_2."""

    def gradient(k: int, at: list[float]) -> list[float]:
        return [a * (x - b) for a, b, x in zip(Bowls.bends[k], Bowls.centres[k], at, strict=True)]

    def moved(at: list[float], along: list[float], length: float) -> list[float]:
        norm = sum(each * each for each in along) ** 0.5
        return [x + length * each / norm for x, each in zip(at, along, strict=True)]

    def gam(k: int, at: list[float]) -> list[float]:
        g_0 = gradient(k, at)
        g_1 = gradient(k, moved(at, g_0, 0.02))
        there = moved(at, [g_1[j] - g_0[j] for j in range(2)], 0.2)
        g_2 = gradient(k, there)
        g_3 = gradient(k, moved(there, g_2, 0.02))
        total, plain = [g_1[j] + g_3[j] for j in range(2)], [g_0[j] + g_2[j] for j in range(2)]
        along = sum(total[j] * plain[j] for j in range(2)) / sum(each * each for each in total)
        return [total[j] - 0.03 * (plain[j] - along * total[j]) for j in range(2)]

    w, c, own = [0.5, -1.5], [0.0, 0.0], [[0.0, 0.0] for _ in range(3)]
    for cohort in ([0, 1], [1, 2], [1, 2])[:rounds]:
        ends, gains = [], [0.0, 0.0]
        for k in cohort:
            x, velocity = list(w), [0.0, 0.0]
            for step in range(3 + k):
                g = gam(k, x)
                for j in range(2):
                    slope = g[j] + decay * x[j]
                    velocity[j] = slope if step == 0 else momentum * velocity[j] + slope
                x = [x[j] - lr * velocity[j] for j in range(2)]
                x = [x[j] - lr * (c[j] - own[k][j]) for j in range(2)]
            renewed = [own[k][j] - c[j] + (w[j] - x[j]) / ((3 + k) * lr) for j in range(2)]
            gains = [gains[j] + renewed[j] - own[k][j] for j in range(2)]
            own[k] = renewed
            ends.append(x)
        w = [sum(end[j] for end in ends) / 2 for j in range(2)]
        c = [c[j] + gains[j] / 3 for j in range(2)]
    return w, [c, *own]


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_released_code(momentum: float, at_once: int) -> None:
    """Correct the weights after each step, divide by τ_k, and add a third of the changes of two of three clients."""
    model = Ellipses(lr=0.05, momentum=momentum, weight_decay=0.1)
    for control in (None, "paper"):
        rule = FedGAMCV(control=control)  # type: ignore[arg-type]
        orchestrator = FederatedOrchestrator(model, clients_at_once=at_once, on_bad_update="raise")
        model.w.data = torch.tensor([0.5, -1.5], dtype=torch.float64)
        trainer(rule, rounds=3).fit(orchestrator, datamodule=Bowls())
        assert SEEN[orchestrator].group_size == at_once
        params, controls = released_code(3, lr=0.05, momentum=momentum, decay=0.1)
        assert close(orchestrator.params, params) == close(variates(rule, 3), controls) == (control is None)


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
