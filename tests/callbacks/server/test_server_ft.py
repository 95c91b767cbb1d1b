"""Server-FT on a linear classifier and a proxy set of four points, by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from resumed import assert_same
from resumed import train as train_digits
from torch import Tensor
from toy import Capture, Head, Normalized, NormalizedData, ProxyData, Quadratic, ToyData, close, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import ConflictMonitor, ServerFT

AWAY = torch.tensor([[1.0, 2.0, -1.0, 0.5], [-1.0, -2.0, 1.0, -0.5]], dtype=torch.float64)  # of equal n: the mean is 0
X, Y = ProxyData.inputs, ProxyData.labels


def gradient(w: Tensor) -> Tensor:
    """Of the mean cross-entropy of X Wᵀ: (softmax - one-hot)ᵀ X / 4."""
    return ((X @ w.reshape(2, 2).T).softmax(1) - torch.eye(2, dtype=torch.float64)[Y]).T @ X / 4


def adam(w: Tensor, steps: int, lr: float) -> Tensor:
    """Kingma & Ba's Algorithm 1 with β = (0.5, 0.999) from m = v = 0."""
    m = v = torch.zeros_like(w)
    for t in range(1, steps + 1):
        g = gradient(w).reshape(-1)
        m, v = 0.5 * m + 0.5 * g, 0.999 * v + 0.001 * g**2
        w = w - lr * (m / (1 - 0.5**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    return w


def fit(*callbacks: Any, updates: Tensor = AWAY, rounds: int = 1) -> FederatedOrchestrator:
    orchestrator = FederatedOrchestrator(Head())
    trainer(*callbacks, rounds=rounds).fit(orchestrator, datamodule=ProxyData(-updates))
    return orchestrator


def test_one_step() -> None:
    """At W = 0 every probability is 1/2. Row 0 of the gradient, for y = (0, 1, 1, 0):

    (-(1, 0) + (0, 1) + (1, 1) - (-1, 0.5)) / 2 / 4 = (0.125, 0.1875); row 1 is its negative. Adam's first step is
    lr·g / (|g| + 1e-8).
    """
    g = torch.tensor([0.125, 0.1875, -0.125, -0.1875], dtype=torch.float64)
    assert close(gradient(torch.zeros(4, dtype=torch.float64)).reshape(-1), g)
    model = fit(ServerFT(epochs=1, lr=0.1))
    assert close(model.params, -0.1 * g / (g.abs() + 1e-8), 1e-12)


def test_some_epochs() -> None:
    assert close(fit(ServerFT(epochs=7, lr=0.1)).params, adam(torch.zeros(4, dtype=torch.float64), 7, 0.1), 1e-12)


def test_adam_starts_anew_every_round_from_the_average() -> None:
    """Round 2 starts from round 1's model: the clients' updates cancel again."""
    first = adam(torch.zeros(4, dtype=torch.float64), 2, 0.1)
    model = fit(ServerFT(lr=0.1), rounds=2)
    assert close(model.params, adam(first, 2, 0.1), 1e-12)
    assert not close(model.params, adam(torch.zeros(4, dtype=torch.float64), 4, 0.1), 1e-6)


def test_the_module_itself_moves_and_keeps_no_gradient() -> None:
    model = fit(ServerFT(lr=0.1))
    weight: Any = model.client.w
    assert torch.equal(weight.detach(), model.params)
    assert weight.grad is None
    assert model.params.grad is None


def test_the_cohort_is_as_without_it() -> None:
    seen = Capture()
    fit(ServerFT(), seen)
    assert close(seen.cohort.deltas, AWAY)
    assert close(seen.cohort.anchor, (0.0, 0.0, 0.0, 0.0))


def test_buffers_stay_the_average() -> None:
    """By hand in NormalizedData; the proxy inputs (±50, 70) would drag the running mean far away."""
    tuned, plain = FederatedOrchestrator(Normalized()), FederatedOrchestrator(Normalized())
    for model, rules in ((tuned, [ServerFT(epochs=3)]), (plain, [])):
        trainer(*rules).fit(model, datamodule=NormalizedData())
    assert not close(tuned.params, plain.params, 1e-4)
    buffers = dict(tuned.client.named_buffers())
    assert close(buffers["norm.running_mean"], [0.8 / 3])
    assert close(buffers["norm.running_var"], [6.5 / 3])
    assert torch.equal(buffers["norm.num_batches_tracked"], torch.tensor(1))


def test_depends_on_nothing_but_its_settings(tmp_path: Path) -> None:
    """Not on a stop after round 2 of 3, nor on a monitor and the frequency of evaluation."""
    whole = train_digits(tmp_path / "a", ServerFT(), rounds=3)
    stopped = train_digits(tmp_path / "b", ServerFT(), rounds=2)
    assert_same(whole, train_digits(tmp_path / "b", ServerFT(), rounds=3, resume=stopped))
    watched = train_digits(tmp_path / "c", ConflictMonitor(), ServerFT(), rounds=3, check_val_every_n_epoch=3)
    assert_same(whole, watched)
    with pytest.raises(AssertionError):
        assert_same(whole, train_digits(tmp_path / "d", rounds=3))


def test_needs_a_proxy_set() -> None:
    with pytest.raises(ConfigurationError, match="ServerFT learns on a proxy set, but ToyData has none"):
        trainer(ServerFT()).fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"lr": float("nan")}, "lr must be positive and finite, got nan"),
        ({"lr": float("inf")}, "lr must be positive and finite, got inf"),
    ],
)
def test_refuses_what_makes_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ServerFT(**settings)
