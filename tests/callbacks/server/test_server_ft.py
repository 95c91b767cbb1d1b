"""Server-FT on a linear classifier and a proxy set of four points, by hand."""

import torch
from lib.hand_made import serve
from lib.toy import Head, ProxyData, close
from torch import Tensor

from fl_lightning.callbacks import ServerFT

AWAY = torch.tensor([[1.0, 2.0, -1.0, 0.5], [-1.0, -2.0, 1.0, -0.5]], dtype=torch.float64)  # of equal n: the mean is 0
X, Y = ProxyData.inputs, ProxyData.labels
ZERO = torch.zeros(4, dtype=torch.float64)


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


def tuned(rule: ServerFT, rounds: int = 1) -> Tensor:
    """The new global model; the module itself has moved, and keeps no gradient."""
    server, capture = serve(AWAY, rule, client=Head(), rounds=rounds)
    assert torch.equal(server.client.w.detach(), server.params)  # type: ignore[union-attr, operator]
    assert server.client.w.grad is server.params.grad is None
    assert close(capture.cohort.deltas, AWAY)
    return server.params


def test_one_step() -> None:
    """At W = 0 every probability is 1/2. Row 0 of the gradient, for y = (0, 1, 1, 0):

    (-(1, 0) + (0, 1) + (1, 1) - (-1, 0.5)) / 2 / 4 = (0.125, 0.1875); row 1 is its negative. Adam's first step is
    lr·g / (|g| + 1e-8).
    """
    g = torch.tensor([0.125, 0.1875, -0.125, -0.1875], dtype=torch.float64)
    assert close(gradient(ZERO).reshape(-1), g)
    assert close(tuned(ServerFT(epochs=1, lr=0.1)), -0.1 * g / (g.abs() + 1e-8), 1e-12)


def test_some_epochs() -> None:
    assert close(tuned(ServerFT(epochs=7, lr=0.1)), adam(ZERO, 7, 0.1), 1e-12)


def test_adam_starts_anew_every_round_from_the_average() -> None:
    """Round 2 starts from round 1's model: the clients' updates cancel again."""
    model = tuned(ServerFT(lr=0.1), rounds=2)
    assert close(model, adam(adam(ZERO, 2, 0.1), 2, 0.1), 1e-12)
    assert not close(model, adam(ZERO, 4, 0.1), 1e-6)
