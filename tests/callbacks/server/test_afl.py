"""AFL by hand."""

import math

import pytest
import torch
from lib.hand_made import serve
from lib.toy import close, send

from fl_lightning import ConfigurationError, FederatedCallback
from fl_lightning.callbacks import AFL, QFedAvg
from fl_lightning.callbacks.server.afl import nearest_on_simplex
from fl_lightning.errors import TrainingError

UPDATES = [[1.0, 0.0], [0.0, 1.0]]


def test_weights_follow_the_losses() -> None:
    """λ = (½, ½), then (0.6, 0.8) - 0.2 = (0.4, 0.6), then (0.5, 0.9) - 0.2 = (0.3, 0.7)."""
    rule = AFL(0.1)
    server, capture = serve(UPDATES, rule, losses=[1.0, 3.0], samples=[9, 1], rounds=2)
    assert close(server.params, [0.9, 1.1], 1e-7)
    assert close(capture.cohort.weights, [0.4, 0.6], 1e-7)
    assert close(rule.state["mixture"], [0.3, 0.7], 1e-7)
    assert close(send(UPDATES, AFL(0.1), losses=[1.0, 3.0])[0], [0.5, 0.5])


def test_a_cohort_shares_its_clients_weights() -> None:
    """Of λ = (0.1, 0.3, 0.6) client 0 and 1 get a quarter and three; λ rises for these two alone."""
    rule = Again(torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64))
    server, capture = serve([[4.0], [8.0], [0.0]], rule, losses=[3.0] * 3, cohorts=[[0, 1]])
    assert close(capture.cohort.weights, [0.25, 0.75])
    assert close(server.params, [7.0])
    assert close(rule.state["mixture"], [0.1 + 0.3 - 0.2, 0.3 + 0.3 - 0.2, 0.6 - 0.2])


class Again(AFL):
    """Begins with a given mixture."""

    def __init__(self, mixture: torch.Tensor) -> None:
        super().__init__()
        self.mixture = mixture

    def on_train_start(self, *_: object) -> None:
        self.state["mixture"] = self.mixture


def test_a_cohort_that_the_mixture_leaves_out_averages_uniformly() -> None:
    server, _ = serve(UPDATES, Again(torch.zeros(2).double()), losses=[1.0, 1.0])
    assert close(server.params, [0.5, 0.5])


@pytest.mark.parametrize("seed", range(20))
def test_the_nearest_point_of_the_simplex(seed: int) -> None:
    """It lies on it, and no nearer point is found along lines to its corners and to random points."""
    draw = torch.Generator().manual_seed(seed)
    point = 2 * torch.randn(5, generator=draw, dtype=torch.float64)
    found = nearest_on_simplex(point)
    assert float(found.min()) >= 0
    assert float(found.sum()) == pytest.approx(1.0)
    others = torch.cat([torch.eye(5).double(), torch.distributions.Dirichlet(torch.ones(5).double()).sample((50,))])
    assert float(((point - found) @ (others - found).T).max()) < 1e-9, "no angle to a feasible direction below 90°"


@pytest.mark.parametrize("large", [1e18, 1e20, 1e300])
def test_the_nearest_point_of_the_simplex_to_a_far_one(large: float) -> None:
    """Where one coordinate lies more than 1 above the others, that is its corner; where all are equal, the middle."""
    assert close(nearest_on_simplex(torch.tensor([large, 0.0], dtype=torch.float64)), [1.0, 0.0])
    assert close(nearest_on_simplex(torch.full((3,), -large, dtype=torch.float64)), [1 / 3, 1 / 3, 1 / 3])


@pytest.mark.parametrize("rule", [AFL(), QFedAvg()])
@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_a_loss_that_is_not_finite(rule: FederatedCallback, loss: float) -> None:
    with pytest.raises(TrainingError, match=f"that of client 1 is {loss}: the model has diverged"):
        serve(UPDATES, rule, losses=[1.0, loss])


def test_gamma() -> None:
    with pytest.raises(ConfigurationError, match="gamma must be positive"):
        AFL(0.0)
