"""Per-FedAvg, first order, on the quadratics of the toy problem, by hand."""

import pytest
import torch
from lib.toy import ETA, A, B, Quadratic, ToyData, close, trainer
from lib.two_numbers import Served

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import PerFedAvg

ALPHA = 0.5


@pytest.mark.parametrize("at_once", [1, 2])
def test_steps_and_the_step_of_a_client(at_once: int) -> None:
    """A step: the gradient A (w - B) at w - α A (w - B), which is (1 - α A) A (w - B). Of a client's own, the mean."""
    models = []
    for k, steps in enumerate((2, 3)):
        w = torch.zeros(2, dtype=torch.float64)
        for _ in range(steps):
            w = w - ETA * (1 - ALPHA * A[k]) * A[k] * (w - B[k])
        models.append(w)
    expected = (models[0] + 3 * models[1]) / 4
    orchestrator, look = FederatedOrchestrator(Quadratic(), clients_at_once=at_once), Served()
    trainer(PerFedAvg(ALPHA), look).fit(orchestrator, datamodule=ToyData())
    assert close(orchestrator.params, expected)
    for k, served in enumerate(look.models):
        assert served == pytest.approx((expected - ALPHA * A[k] * (expected - B[k])).tolist())


def test_alpha() -> None:
    with pytest.raises(ConfigurationError, match="alpha must be positive and finite, got 0"):
        PerFedAvg(0.0)
