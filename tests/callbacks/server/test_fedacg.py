"""FedACG by hand."""

import pytest
import torch
from lib.toy import Capture, GivenData, Linear, close, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedACG


@pytest.mark.parametrize("at_once", [1, 2])
def test_clients_start_ahead(at_once: int) -> None:
    """λ = ½, β = ½, two steps of 1: 1 and 1 - ½, and 3 and 3 - 1.5, so that updates are 1.5 and 4.5, of mean 3.

    The momentum is 3, then ½ · 3 + 3 = 4.5, since clients that start at 3 + 1.5 are pulled there: w is 3, then 7.5.
    """
    rule, capture = FedACG(lam=0.5, beta=0.5), Capture()
    data = GivenData(torch.tensor([[-1.0], [-3.0]]).double(), samples=[2, 2], steps=[2, 2])
    orchestrator = FederatedOrchestrator(Linear(1), clients_at_once=at_once)
    trainer(rule, capture, rounds=2).fit(orchestrator, datamodule=data)
    assert all(close(cohort.deltas, [[1.5], [4.5]]) for cohort in capture.cohorts)
    assert close(orchestrator.params, [7.5])


@pytest.mark.parametrize("arguments", [(1.0, 0.1), (0.5, -1.0)])
def test_arguments(arguments: tuple[float, float]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        FedACG(*arguments)
