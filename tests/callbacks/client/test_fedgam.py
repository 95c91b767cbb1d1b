"""FedGAM on the toy problem, by hand, in both variants."""

from typing import Any

import pytest
import torch
from lib.toy import A, Capture, Net, Quadratic, Same, ToyData, close, send, train, trainer
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedGAM
from fl_lightning.callbacks.client.fedgam import paper_gradient, released_gradient

RELEASED = ((-2.0650831413180653, 4.460648561479842), (12.718343232817288, -2.005467863958322))


def first_steps(rule: FedGAM) -> Tensor:
    """(2, 2) the gradients that T's clients follow from w = 0."""
    capture = Capture()
    trainer(rule, capture).fit(FederatedOrchestrator(Quadratic(), local_steps=1), datamodule=ToyData())
    return -torch.stack(capture.params) / 0.1


def test_first_step_of_the_paper() -> None:
    """Client 0: g = (-1, 2), of norm √5: at 0.02 g/√5 the gradient is g + 0.02 (-1, 4)/√5. Client 1: g = (6, -1),
    √37, and g + 0.02 (18, -0.5)/√37. αρ = 0.004.
    """
    near = (-1 - 0.02 / 5**0.5, 2 + 0.08 / 5**0.5), (6 + 0.36 / 37**0.5, -1 - 0.01 / 37**0.5)
    by_hand = torch.tensor([[-1, 2], [6, -1]], dtype=torch.float64) + 0.004 * torch.tensor(near, dtype=torch.float64)
    assert close(first_steps(FedGAM("paper")), by_hand)
    assert close(by_hand, ((-1.00403577708764, 2.00814310835056), (6.02423673454172, -1.0040065759594923)))


def test_first_step_of_the_released_code() -> None:
    """Work out the released code's gradient at w = 0 for T's clients, whose gradient at w + e is g₀ + A ∘ e."""
    expected = []
    for a, g_0 in zip(A, torch.tensor([[-1.0, 2.0], [6.0, -1.0]], dtype=torch.float64), strict=True):
        bend = a * g_0  # (-1, 4) and (18, -0.5)
        g_1 = g_0 + 0.02 * bend / g_0.norm()
        e = 0.2 * bend / bend.norm()  # g₁ - g₀ has the direction of the bend
        g_2 = g_0 + a * e
        g_3 = g_2 + 0.02 * a * g_2 / g_2.norm()
        total, plain = g_1 + g_3, g_0 + g_2
        across = torch.stack([-total[1], total[0]]) / total.norm()  # of length 1, orthogonal to the total
        expected.append(total - 0.03 * (plain @ across) * across)
    assert close(torch.stack(expected), RELEASED)
    assert close(first_steps(FedGAM()), torch.stack(expected))


def test_the_arguments_that_act_in_each_variant() -> None:
    """ρ in both, α in the paper's, ρ' in the released code's."""
    for variant, acts in (("paper", {"alpha", "rho"}), ("released", {"rho", "rho_prime"})):
        usual = first_steps(FedGAM(variant))  # type: ignore[arg-type]
        for name in ("alpha", "rho", "rho_prime"):
            other = first_steps(FedGAM(variant, **{name: 0.07}))  # type: ignore[arg-type]
            assert torch.equal(usual, other) == (name not in acts), (variant, name)


def test_one_round_of_the_paper() -> None:
    """Client 0 after one step: 0.1 (1.00403577708764, -2.00814310835056); its second is as its first, from there.

    g = (0.100403577708764 - 1, 2(-0.200814310835056 + 1)) = (-0.899596422, 1.598371378), of norm 1.834143894: G = g
    + 0.004 (g + 0.02 (1, 2) ∘ g/1.834143894) = (-0.903234046, 1.604904297). Client 1 likewise in three steps.
    """
    capture = Capture()
    assert close(train(FedGAM("paper"), capture), (-0.563422913728324, -0.03748467939076475))
    assert close(torch.stack(capture.params)[0], (0.1004035777 + 0.0903234046, -0.2008143108 - 0.1604904297), 1e-9)
    assert close(torch.stack(capture.params)[1], (-1.3175728097514197, 0.2863353817355899))


def test_momentum_takes_the_corrected_gradient() -> None:
    """Momentum 0.9, client 0: the second velocity is 0.9 (-1.0040357771, 2.0081431084) + G, G = (-0.903234046,
    1.604904297) as above: w = 0.1 (1.9·1.0040357771 + 0.903234046, …).
    """
    capture = Capture()
    train(FedGAM("paper"), capture, momentum=0.9)
    assert close(capture.params[0], (0.2810902022, -0.5420376203), 1e-9)


def test_reports_the_loss_where_the_client_stands() -> None:
    """Client 0 at 0: (1 + 2)/2; one step on, (0.899596422² + 2·0.799185689²)/2 = 1.0433346..."""
    for variant in ("paper", "released"):
        capture = Capture()
        trainer(FedGAM(variant), capture).fit(  # type: ignore[arg-type]
            FederatedOrchestrator(Quadratic(), local_steps=1), datamodule=ToyData()
        )
        assert capture.runs[0].loss == pytest.approx(1.5, abs=1e-12)
    train(FedGAM("paper"), capture := Capture())
    assert capture.runs[0].loss == pytest.approx((1.5 + (0.899596422**2 + 2 * 0.799185689**2) / 2) / 2, abs=1e-8)


def test_linear_losses() -> None:
    """The gradient is c wherever it is: eq. 19 makes (1 + αρ)c of it, the released code c + c, less nothing."""
    updates = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
    assert close(send(updates, FedGAM("paper", alpha=0.5, rho=0.1))[0], 1.05 * updates.mean(0))
    assert close(send(updates, FedGAM())[0], 2 * updates.mean(0))


def test_counts_clients_uniformly() -> None:
    """Not n = (1, 3); a later FedAvg may."""
    updates = [[2.0, 0.0], [0.0, 4.0]]
    assert close(send(updates, FedGAM(), samples=[1, 3])[0], (2, 4))
    assert close(send(updates, FedGAM(), FedAvg(), samples=[1, 3])[0], (1, 6))


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("size", [0.0, 1e-30])
def test_vanishing_gradients_give_no_nan(variant: Any, size: float) -> None:
    """In float32, where the squares of these are zero."""
    g, w = torch.tensor([0.0, size, 0.0]), torch.ones(3)
    for rho in (0.0, 0.1):
        args = (w, g, lambda _: g.clone(), 0.2, rho)
        moved = paper_gradient(*args) if variant == "paper" else released_gradient(*args)
        assert bool(moved.isfinite().all())
        assert float(moved.norm()) <= 2.1 * size
    assert torch.equal(send([[0.0, 0.0]], FedGAM(variant))[0], torch.zeros(2, dtype=torch.float64))


def test_the_released_gradient_keeps_its_flat_part() -> None:
    """What is taken off is orthogonal to G: (result)·G = ‖G‖², with G = g₁ + g₃ from the passes as they came."""
    generator, seen = torch.Generator().manual_seed(0), []
    curvature, w = torch.rand(2, 7, generator=generator, dtype=torch.float64)

    def at(point: Tensor) -> Tensor:
        seen.append(curvature * point)
        return seen[-1]

    result = released_gradient(w, curvature * w, at, 0.3, 0.4)
    assert len(seen) == 3
    total = seen[0] + seen[2]
    assert float(result @ total) == pytest.approx(float(total @ total), rel=1e-12)
    assert not torch.allclose(result, total)


class Counting(Net):
    """Counts the passes over its batches; logs its loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(batch_idx)
        loss = super().training_step(batch, batch_idx)
        self.log("seen", loss)
        return loss


@pytest.mark.parametrize(("rule", "passes"), [(FedGAM("paper"), 2), (FedGAM("paper", 0.0), 1), (FedGAM(), 4)])
def test_passes_over_each_batch(rule: FedGAM, passes: int) -> None:
    """What the module logs is the first pass's, at the client's own parameters."""
    module, capture = Counting(), Capture()
    trainer(rule, capture).fit(
        FederatedOrchestrator(module, on_bad_update="raise", on_hidden_state="off"), datamodule=Same()
    )
    assert len(module.seen) == passes * 5
    assert capture.runs[0].metrics["seen"] == pytest.approx(capture.runs[0].loss, rel=1e-6)


def test_the_default_is_what_the_papers_results_come_from() -> None:
    assert FedGAM().variant == "released"
