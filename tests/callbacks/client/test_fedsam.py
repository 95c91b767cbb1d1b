"""FedSAM on the toy problem, by hand; ASAM's ascent."""

import pytest
import torch
from lib.toy import A, B, Capture, Quadratic, ToyData, close, send, train, trainer
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedSAM
from fl_lightning.callbacks.client.fedsam import along, ascent


def test_one_round_of_the_toy_problem() -> None:
    """Follow T's two clients through two and three steps with ρ = 0.1; the server averages by n = (1, 3)."""

    def step(client: int, w: Tensor) -> Tensor:
        g = A[client] * (w - B[client])
        epsilon = 0.1 * g / (g[0] ** 2 + g[1] ** 2) ** 0.5
        return w - 0.1 * (g + A[client] * epsilon)  # the gradient at w + ε

    start = torch.zeros(2, dtype=torch.float64)
    first_0 = step(0, start)  # g = (-1, 2), of norm √5
    assert close(first_0, (0.104472136, -0.217888544))  # by hand, as the next line
    end_0 = step(0, first_0)
    assert close(end_0, (0.19899336, -0.39166763), 1e-8)
    end_1 = step(1, step(1, step(1, start)))
    mean = (end_0 + 3 * end_1) / 4
    assert close(mean, (-0.9833827156461815, 0.1185317091681993))
    capture = Capture()
    assert close(train(FedSAM(), capture), mean)
    assert close(torch.stack(capture.params), torch.stack([end_0, end_1]))


def test_reports_the_loss_where_the_client_stands() -> None:
    """Client 0: (1 + 2)/2 at 0; at (0.104472136, -0.217888544) (0.895527864² + 2·0.782111456²)/2 = 1.01268...

    0.895527864² = 0.801970155, 0.782111456² = 0.611698330: 0.400985078 + 0.611698330 = 1.012683408.
    """
    capture = Capture()
    train(FedSAM(), capture)
    assert capture.runs[0].loss == pytest.approx((1.5 + 1.012683408) / 2, abs=1e-8)


def test_the_perturbed_gradient_enters_momentum() -> None:
    """Momentum 0.9, client 0: after two steps the velocity holds 0.9 (-1.04472136, 2.17888544) + (the second as above).

    (0.1 + 0.09)·1.04472136 + 0.094521208 and -(0.19·2.17888544 + 0.173779024).
    """
    capture = Capture()
    train(FedSAM(), capture, momentum=0.9)
    assert close(capture.params[0], (0.2930182664, -0.5877672576), 1e-7)


@pytest.mark.parametrize("eta", [0.0, 0.5])
def test_eta_is_added_to_the_scale(eta: float) -> None:
    """Two clients, 2 and 3 steps from w = (1.5, 0), in plain loops as FedGAM's released code has ASAM.

    That code's η is 0, with which ε = ρ w² g / ‖|w| g‖: at w = 0 nothing is perturbed.
    """
    ends = []
    for k in range(2):
        w, (a, b) = [1.5, 0.0], (A[k].tolist(), B[k].tolist())
        for _ in range(2 + k):
            g = [a[j] * (w[j] - b[j]) for j in range(2)]
            scale = [abs(w[j]) + eta for j in range(2)]
            norm = sum((scale[j] * g[j]) ** 2 for j in range(2)) ** 0.5
            there = [w[j] + 0.1 / norm * scale[j] ** 2 * g[j] for j in range(2)]
            w = [w[j] - 0.1 * a[j] * (there[j] - b[j]) for j in range(2)]
        ends.append(w)
    orchestrator, capture = FederatedOrchestrator(Quadratic()), Capture()
    orchestrator.client.w.data.copy_(torch.tensor([1.5, 0.0]))  # type: ignore[union-attr, operator]
    trainer(FedSAM(0.1, adaptive=True, eta=eta), capture).fit(orchestrator, datamodule=ToyData())
    assert close(torch.stack(capture.params), ends)


def test_parameters_at_zero_have_no_direction_without_eta() -> None:
    """T = 0 at w = 0: the step is that of FedAvg."""
    one = {"local_steps": 1}
    assert torch.equal(train(FedSAM(0.1, adaptive=True, eta=0.0), **one), train(**one))
    assert not close(train(FedSAM(0.1, adaptive=True), **one), train(**one), 1e-6)


def test_ascent() -> None:
    """0.5 (3, 4)/5; T = (4, 3): T g = (12, 12), ε = 0.5 (48, 36)/(12√2). Its length in units of T is 0.5."""
    gradient, scale = torch.tensor([3.0, 4.0], dtype=torch.float64), torch.tensor([4.0, 3.0], dtype=torch.float64)
    assert close(ascent(gradient, 0.5), (0.3, 0.4))
    adaptive = ascent(gradient, 0.5, scale)
    assert close(adaptive, (2 / 2**0.5, 1.5 / 2**0.5))
    assert close((adaptive / scale).norm(), 0.5)


def test_adaptive_ascent_is_blind_to_the_scale_of_a_layer() -> None:
    """Parameters c times as large have gradients 1/c times as large, and are perturbed c times as far."""
    gradient, scale, factors = torch.rand(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    assert close(ascent(gradient / factors, 0.3, scale * factors), factors * ascent(gradient, 0.3, scale))
    assert not close(ascent(gradient / factors, 0.3), factors * ascent(gradient, 0.3), 1e-3)


@pytest.mark.parametrize("size", [1e-30, 1e-44, 1e30])
def test_along_is_finite_whatever_the_vector(size: float) -> None:
    """In float32, where the squares of these are zero or infinite; a zero vector has no direction."""
    step = along(torch.tensor([0.0, size, 0.0]), 0.1)
    assert bool(step.isfinite().all())
    assert torch.equal(along(torch.zeros(3), 0.1), torch.zeros(3))


def test_a_linear_loss_has_the_same_gradient_everywhere() -> None:
    updates = [[1.0, 2.0], [3.0, -1.0]]
    assert torch.equal(send(updates, FedSAM(5.0))[0], send(updates)[0])
