"""FedBE's Gaussian, its ensemble and its targets, by hand."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from resumed import assert_same
from resumed import train as train_digits
from torch import Tensor, nn
from toy import Capture, Head, Normalized, NormalizedData, ProxyData, Quadratic, ToyData, close, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import ConflictMonitor, FedBE
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

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return (torch.cat([self.w, self.v]) * batch[0]).sum()


class Seen(FedBE):
    """Keeps the teachers' parameters and buffers."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seen: list[tuple[Tensor, Any]] = []

    def teachers(self, *round: Any) -> Iterator[Any]:
        for params, buffers in super().teachers(*round):
            self.seen.append((params.clone(), buffers))
            yield params, buffers


def fit(*callbacks: Any, updates: Tensor = UPDATES, rounds: int = 1, seed: int = 0) -> FederatedOrchestrator:
    orchestrator = FederatedOrchestrator(TwoTensors(), seed=seed)
    trainer(*callbacks, rounds=rounds).fit(orchestrator, datamodule=ProxyData(-updates, samples=[1, 3]))
    return orchestrator


def test_the_gaussian_of_two_directions() -> None:
    """(3, 4)/5 = (0.6, 0.8) and (0, 2)/2 = (0, 1): means (0.3, 0.9), of squares (0.18, 0.82); (5 + 2)/2 = 3.5."""
    mean, variance, norm = direction_gaussian(torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64))
    assert close(mean, (0.3, 0.9))
    assert close(variance, (0.09, 0.01))
    assert close(norm, 3.5)
    assert close(norm * mean, (1.05, 3.15))


def test_a_zero_update_has_no_direction() -> None:
    """(0.6, 0.8) and (0, 0): means (0.3, 0.4), of squares (0.18, 0.32)."""
    mean, variance, norm = direction_gaussian(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64))
    assert close(mean, (0.3, 0.4))
    assert close(variance, (0.09, 0.16))
    assert close(norm, 2.5)


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
    rule = Seen(num_samples=2)
    generator = fit(rule).generator("fedbe", 1)
    around, width = torch.tensor([centre, spread], dtype=torch.float64)
    noise = [torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(2)]
    draws = [START + around + width * epsilon for epsilon in noise]
    assert close(torch.stack([params for params, _ in rule.seen]), torch.stack([average, *draws, *(START + UPDATES)]))


def test_draws_differ_between_draws_rounds_and_seeds() -> None:
    def draws(**settings: Any) -> list[Tensor]:
        rule, seen = Seen(num_samples=2), Capture()
        fit(rule, seen, **settings)
        anchors = [cohort.anchor for cohort in seen.cohorts for _ in range(5)]
        moves = [params - anchor for (params, _), anchor in zip(rule.seen, anchors, strict=True)]
        return [move for i, move in enumerate(moves) if i % 5 in (1, 2)]

    first, again, other = draws(rounds=2), draws(rounds=2), draws(seed=1)
    assert all(map(torch.equal, first, again))
    everything = [*first, *other]
    assert not any(close(a, b, 1e-6) for i, a in enumerate(everything) for b in everything[:i])


def test_the_target_is_the_mean_of_probabilities() -> None:
    """Logits (2, 0, 0), (0, 2, 0): (a, b, b), (b, a, b), a = e²/(e² + 2), b = 1/(e² + 2): ((a + b)/2, (a + b)/2, b).

    Against the student (0.5, 0, -0.5) the divergence is 0.0516783044; the mean of the logits gives 0.0294342657.
    """
    logits = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 2.0, 0.0]]], dtype=torch.float64)
    target = FedBE().probabilities(logits)
    total = math.exp(2) + 2
    assert close(target, [[(math.exp(2) + 1) / 2 / total, (math.exp(2) + 1) / 2 / total, 1 / total]])
    student = torch.tensor([[0.5, 0.0, -0.5]], dtype=torch.float64)
    assert float(distillation_loss(student, target)) == pytest.approx(0.0516783044, abs=1e-10)


def test_one_step_towards_the_ensemble() -> None:
    """Adam's first step is lr·g / (|g| + 1e-8), g = (softmax(X W̄ᵀ) - mean of the teachers' probabilities)ᵀ X / 4."""
    rule = Seen(epochs=1, lr=0.1)
    model = fit(rule)
    probabilities = torch.stack([(ProxyData.inputs @ w.reshape(2, 2).T).softmax(1) for w, _ in rule.seen])
    gradient = ((probabilities[0] - probabilities.mean(0)).T @ ProxyData.inputs / 4).reshape(-1)
    assert gradient.abs().min() > 1e-3
    assert close(model.params, rule.seen[0][0] - 0.1 * gradient / (gradient.abs() + 1e-8))


def test_the_target_from_logits() -> None:
    """Logits (2, 0, 0), (0, 2, 0): their mean (1, 1, 0) has the softmax (e, e, 1) / (2e + 1).

    Against the student (0.5, 0, -0.5) the divergence is 0.0294342657, as for FedDF.
    """
    logits = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 2.0, 0.0]]], dtype=torch.float64)
    target = FedBE(teacher="logits").probabilities(logits)
    total = 2 * math.e + 1
    assert close(target, [[math.e / total, math.e / total, 1 / total]])
    student = torch.tensor([[0.5, 0.0, -0.5]], dtype=torch.float64)
    assert float(distillation_loss(student, target)) == pytest.approx(0.0294342657, abs=1e-10)


def softmax(logits: list[float]) -> list[float]:
    return [math.exp(each) / sum(map(math.exp, logits)) for each in logits]


def test_one_step_towards_the_mean_logits() -> None:
    """Adam's first step is lr·g / (|g| + 1e-8), g = Σ_x (softmax(W̄x) - softmax(mean of the teachers' Wx)) xᵀ / 4."""
    rule = Seen(epochs=1, lr=0.1, teacher="logits")
    model = fit(rule)
    weights = [params.tolist() for params, _ in rule.seen]  # row by row; the student's first
    gradient = [0.0] * 4
    for x in ProxyData.inputs.tolist():
        logits = [[w[2 * row] * x[0] + w[2 * row + 1] * x[1] for row in (0, 1)] for w in weights]
        mean = [sum(each[row] for each in logits) / len(logits) for row in (0, 1)]
        for row, (own, target) in enumerate(zip(softmax(logits[0]), softmax(mean), strict=True)):
            for column in (0, 1):
                gradient[2 * row + column] += (own - target) * x[column] / 4
    assert min(map(abs, gradient)) > 1e-3
    moved = [w - 0.1 * g / (abs(g) + 1e-8) for w, g in zip(weights[0], gradient, strict=True)]
    assert close(model.params, moved)


def test_zero_updates_draw_the_model_itself() -> None:
    """The mean norm is 0: no spread. All teachers are the student: nothing moves, and nothing is nan."""
    rule = Seen(epochs=3)
    assert close(fit(rule, updates=torch.zeros(2, 4)).params, START)
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
    buffers = dict(orchestrator.client.named_buffers())
    assert close(buffers["norm.running_mean"], [0.8 / 3])
    assert close(buffers["norm.running_var"], [6.5 / 3])
    assert torch.equal(buffers["norm.num_batches_tracked"], torch.tensor(1))


def test_depends_on_nothing_but_its_settings(tmp_path: Path) -> None:
    """Not on a stop after round 2 of 3, nor on a monitor and the frequency of evaluation."""
    rule = FedBE(num_samples=2, epochs=3)
    whole = train_digits(tmp_path / "a", rule, rounds=3)
    stopped = train_digits(tmp_path / "b", rule, rounds=2)
    assert_same(whole, train_digits(tmp_path / "b", rule, rounds=3, resume=stopped))
    watched = train_digits(tmp_path / "c", ConflictMonitor(), rule, rounds=3, check_val_every_n_epoch=3)
    assert_same(whole, watched)
    with pytest.raises(AssertionError):
        assert_same(whole, train_digits(tmp_path / "d", rounds=3))


def test_needs_a_proxy_set() -> None:
    with pytest.raises(ConfigurationError, match="FedBE learns on a proxy set, but ToyData has none"):
        trainer(FedBE()).fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"teacher": "mean"}, "teacher must be 'probabilities' or 'logits', got 'mean'"),
        ({"lr": float("nan")}, "lr must be positive and finite, got nan"),
    ],
)
def test_refuses_what_makes_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FedBE(**settings)
