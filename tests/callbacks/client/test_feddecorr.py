"""FedDecorr of four examples with three features, by hand, and in a run."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lib.toy import Capture, Net, Same, close, trainer
from torch import nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedDecorr
from fl_lightning.callbacks.client.feddecorr import decorrelation

X = torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 1.0], [3.0, 5.0, -1.0], [4.0, 2.0, 2.0]], dtype=torch.float64)
RELEASED, PAPER = 0.6033333274, 0.5120987602


@pytest.mark.parametrize(("scale", "by_hand"), [("released", RELEASED), ("paper", PAPER)])
def test_three_features_of_four_examples(scale: Any, by_hand: float) -> None:
    """Compute the penalty of three features x, y, z of four examples; 1e-8 is added to the variances."""
    centred = X - X.mean(0)
    assert close(centred.T @ centred, ((5, 2, 2), (2, 9, -5), (2, -5, 5)))  # by hand: squares and products
    var_x, var_y, var_z = 5 / 3 + 1e-8, 9 / 3 + 1e-8, 5 / 3 + 1e-8
    k_xx, k_yy, k_zz = (5 / 3 / var_x) ** 2, (9 / 3 / var_y) ** 2, (5 / 3 / var_z) ** 2
    k_xy = (2 / 3) ** 2 / (var_x * var_y)  # squared correlations: about 4/45, 4/25 and 25/45
    k_xz = (2 / 3) ** 2 / (var_x * var_z)
    k_yz = (-5 / 3) ** 2 / (var_y * var_z)
    off_diagonal = 2 * (k_xy + k_xz + k_yz)
    assert off_diagonal == pytest.approx(2 * 181 / 225)  # by hand
    released = 3**2 * off_diagonal / 6 / 4  # Zᵀ Z is N - 1 = 3 times the correlations; 6 entries, N = 4
    paper = (k_xx + k_yy + k_zz + off_diagonal) / 9
    expected = released if scale == "released" else paper
    assert expected == pytest.approx(by_hand, abs=1e-9)
    assert float(decorrelation(X, scale)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("scale", ["released", "paper"])
def test_its_gradient(scale: Any) -> None:
    """With D = ∂/∂Z = c Z M (released: M = Zᵀ Z off its diagonal, c = 4/(d(d-1)N); paper: M = Zᵀ Z, c = 4/(d(N-1))²),
    ∂/∂X = (D - mean D)/s - Z ∘ Σ(D ∘ Z)/((N-1) s), s the standard deviations.
    """
    x = X.clone().requires_grad_()
    decorrelation(x, scale).backward()
    s = (X.var(0) + 1e-8).sqrt()
    z = (X - X.mean(0)) / s
    m = z.T @ z if scale == "paper" else z.T @ z - (z.T @ z).diag().diag()
    d = (4 / 81 if scale == "paper" else 4 / 24) * z @ m
    gradient = (d - d.mean(0)) / s - z * (d * z).sum(0) / (3 * s)
    assert gradient.abs().max() > 0.01
    assert close(x.grad, gradient)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", ["released", "paper"])
def test_one_example_correlates_with_nothing(scale: Any) -> None:
    assert float(decorrelation(X[:1], scale)) == 0.0


def test_one_feature_correlates_with_none() -> None:
    """On the paper's scale its own variance is left: 1."""
    assert float(decorrelation(X[:, :1], "released")) == 0.0
    assert float(decorrelation(X[:, :1], "paper")) == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize("scale", ["released", "paper"])
def test_a_constant_feature_has_a_finite_gradient(scale: Any) -> None:
    """As of a ReLU that is off for the whole batch: correlations with it are 0."""
    x = torch.cat([X[:, :2], torch.zeros(4, 1, dtype=torch.float64)], 1).requires_grad_()
    value = decorrelation(x, scale)
    value.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    pair = 9 * 4 / 45 / 3 / 4 if scale == "released" else (2 + 2 * 4 / 45) / 9
    assert float(value.detach()) == pytest.approx(pair, abs=1e-7)


def test_a_step_against_autograd() -> None:
    """One step of a network, its features' correlations by torch.cov."""
    net, (x, y) = Net(), next(iter(Same().client_batches(0, torch.Generator())))
    features = net.net[:2](x)
    covariance = torch.cov(features.T)
    s = (covariance.diagonal() + 1e-8).sqrt()
    off = ~torch.eye(8, dtype=torch.bool)
    term = (5 * covariance / s / s[:, None])[off].square().mean() / 6  # N = 6
    (F.cross_entropy(net.net[2](features), y) + 0.3 * term).backward()
    before = nn.utils.parameters_to_vector(net.parameters()).detach()
    net.configure_optimizers().step()
    capture = Capture()
    orchestrator = FederatedOrchestrator(Net(), local_steps=1, on_bad_update="raise")
    trainer(FedDecorr(0.3), capture).fit(orchestrator, datamodule=Same())
    after = nn.utils.parameters_to_vector(net.parameters()).detach()
    assert close(capture.params[0], after, 1e-6)
    assert not close(capture.params[0], before, 1e-3)
