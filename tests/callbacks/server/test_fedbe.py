"""FedBE's Gaussian, its ensemble and its targets, by hand."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lib.hand_made import Bench, serve
from lib.toy import Head, Normalized, NormalizedData, ProxyData, close, trainer
from torch import Tensor, nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedBE
from fl_lightning.callbacks.server.fedbe import direction_gaussian
from fl_lightning.callbacks.server.feddf import distillation_loss

UPDATES = torch.tensor([[3.0, 4.0, 0.0, 1.0], [0.0, 2.0, 0.0, 0.0]], dtype=torch.float64)
START = torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=torch.float64)


class TwoTensors(Head):
    """The linear classifier with a parameter tensor a row, w and v."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.v = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.stack([self.w, self.v]).T


class Seen(FedBE):
    """Keeps the teachers' parameters and buffers."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seen: list[tuple[Tensor, Any]] = []

    def teachers(self, *round: Any) -> Iterator[Any]:
        for params, buffers in super().teachers(*round):
            self.seen.append((params.clone(), buffers))
            yield params, buffers


def distilled(rule: FedBE, updates: Tensor = UPDATES, **settings: Any) -> Bench:
    return serve(updates, rule, samples=[1, 3], client=TwoTensors(), **settings)[0]


@pytest.mark.parametrize(
    ("second", "mean", "variance", "length"),
    [((0.0, 2.0), (0.3, 0.9), (0.09, 0.01), 3.5), ((0.0, 0.0), (0.3, 0.4), (0.09, 0.16), 2.5)],
)
def test_the_gaussian_of_two_directions(second: Any, mean: Any, variance: Any, length: float) -> None:
    """(3, 4)/5 = (0.6, 0.8) and (0, 2)/2 = (0, 1): means (0.3, 0.9), of squares (0.18, 0.82); (5 + 2)/2 = 3.5.

    A zero update has no direction: means (0.3, 0.4), of squares (0.18, 0.32).
    """
    updates = torch.tensor([[3.0, 4.0], second], dtype=torch.float64)
    for found, expected in zip(direction_gaussian(updates), (mean, variance, length), strict=True):
        assert close(found, expected)


def test_the_length_of_an_update_changes_the_mean_length_alone() -> None:
    updates = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scaled = updates * torch.tensor([1.0, 10.0, 0.1, 3.0, 2.0], dtype=torch.float64)[:, None]
    for before, after in zip(direction_gaussian(updates)[:2], direction_gaussian(scaled)[:2], strict=True):
        assert close(after, before)
    assert not close(direction_gaussian(scaled)[2], direction_gaussian(updates)[2])


def test_the_ensemble() -> None:
    """Check the teachers of a round: the average by n = (1, 3), two draws around the average, the clients' models."""
    length_w, length_v = (5 + 2) / 2, (1 + 0) / 2  # w's updates are (3, 4) and (0, 2), v's (0, 1) and (0, 0)
    mean_w, mean_v = ((0.6 + 0) / 2, (0.8 + 1) / 2), ((0 + 0) / 2, (1 + 0) / 2)  # of the directions
    deviation_w = ((0.6 - 0) / 2, (1 - 0.8) / 2)
    deviation_v = (math.sqrt(1e-5), (1 - 0) / 2)  # a variance of 0 is raised to 1e-5
    centre = [length_w * mean_w[0], length_w * mean_w[1], length_v * mean_v[0], length_v * mean_v[1]]
    assert centre == pytest.approx([1.05, 3.15, 0.0, 0.25])  # by hand, as the next line
    spread = [0.1 * length_w * entry for entry in deviation_w] + [0.1 * length_v * entry for entry in deviation_v]
    assert spread == pytest.approx([0.105, 0.035, 0.05 * math.sqrt(1e-5), 0.025])
    average = START + (UPDATES[0] + 3 * UPDATES[1]) / 4
    assert close(average - START, (0.75, 2.5, 0.0, 0.25))  # by hand
    generator = distilled(rule := Seen(num_samples=2, epochs=1)).generator("fedbe", 1)
    around, width = torch.tensor([centre, spread], dtype=torch.float64)
    noise = [torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(2)]
    draws = [START + around + width * epsilon for epsilon in noise]
    assert close(torch.stack([params for params, _ in rule.seen]), torch.stack([average, *draws, *(START + UPDATES)]))


def test_draws_differ_between_rounds_and_seeds() -> None:
    """From where the round began, which is where the last client's update of (0, 2, 0, 0) started."""

    def draws(**settings: Any) -> list[Tensor]:
        distilled(rule := Seen(epochs=1), **settings)
        teachers = [params for params, _ in rule.seen]
        return [teachers[i + 1] - teachers[i + 3] for i in range(0, len(teachers), 4)]

    first, again, other = draws(rounds=2), draws(rounds=2), draws(seed=1)
    assert all(map(torch.equal, first, again))
    everything = [*first, *other]
    assert not any(close(a, b, 1e-6) for i, a in enumerate(everything) for b in everything[:i])


TEACHERS: Any = [("probabilities", 0.0516783044), ("logits", 0.0294342657)]


@pytest.mark.parametrize(("teacher", "divergence"), TEACHERS)
def test_the_target(teacher: Any, divergence: float) -> None:
    """Logits (2, 0, 0), (0, 2, 0): (a, b, b), (b, a, b), a = e²/(e² + 2), b = 1/(e² + 2): ((a + b)/2, (a + b)/2, b).

    The mean of the logits, (1, 1, 0), has the softmax (e, e, 1) / (2e + 1), as for FedDF. The divergence from either
    is that of the student (0.5, 0, -0.5).
    """
    logits = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 2.0, 0.0]]], dtype=torch.float64)
    target = FedBE(teacher=teacher).probabilities(logits)
    top, total = ((math.exp(2) + 1) / 2, math.exp(2) + 2) if teacher == "probabilities" else (math.e, 2 * math.e + 1)
    assert close(target, [[top / total, top / total, 1 / total]])
    student = torch.tensor([[0.5, 0.0, -0.5]], dtype=torch.float64)
    assert float(distillation_loss(student, target)) == pytest.approx(divergence, abs=1e-10)


@pytest.mark.parametrize("teacher", ["probabilities", "logits"])
def test_one_step_towards_the_ensemble(teacher: Any) -> None:
    """Adam's first step is lr·g / (|g| + 1e-8), g = (softmax(X W̄ᵀ) - the teachers' probabilities)ᵀ X / 4."""
    model = distilled(rule := Seen(epochs=1, lr=0.1, teacher=teacher)).params
    logits = torch.stack([ProxyData.inputs @ w.reshape(2, 2).T for w, _ in rule.seen])
    target = logits.softmax(2).mean(0) if teacher == "probabilities" else logits.mean(0).softmax(1)
    gradient = ((logits[0].softmax(1) - target).T @ ProxyData.inputs / 4).reshape(-1)
    assert gradient.abs().min() > 1e-3
    assert close(model, rule.seen[0][0] - 0.1 * gradient / (gradient.abs() + 1e-8))


def test_zero_updates_draw_the_model_itself() -> None:
    """The mean norm is 0: no spread. All teachers are the student: nothing moves, and nothing is nan."""
    assert close(distilled(rule := Seen(epochs=3), torch.zeros(2, 4)).params, START)
    assert all(torch.equal(params, START) for params, _ in rule.seen)
    assert len(rule.seen) == 4


class Normed(Normalized):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def test_the_average_and_the_draw_have_the_average_buffers_the_clients_their_own() -> None:
    """Running means 0.2 and 0.3, variances 1.1 and 2.7 by hand in NormalizedData, n = (2, 4)."""
    rule, orchestrator = Seen(epochs=3), FederatedOrchestrator(Normed())
    trainer(rule).fit(orchestrator, datamodule=NormalizedData())
    means, variances, counts = (torch.stack(values) for values in zip(*(b for _, b in rule.seen), strict=True))
    assert close(means[:, 0], (0.8 / 3, 0.8 / 3, 0.2, 0.3))
    assert close(variances[:, 0], (6.5 / 3, 6.5 / 3, 1.1, 2.7))
    assert counts.tolist() == [1, 1, 1, 1]
