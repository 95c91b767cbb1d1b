"""The hook after each local optimizer step: it moves the weights, and momentum does not see it."""

from typing import Any

import pytest
import torch
from lib.toy import SEEN, Capture, GivenData, Linear, close, trainer
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import SGD

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun, Monitor

ROWS = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-2.0, 6.0]], dtype=torch.float64)
STEPS = [2, 5, 3]


class Sinks(FederatedCallback):
    """Lowers each weight by 1 after each step."""

    stacks = True

    def on_after_client_step(self, run: LocalRun) -> None:
        run.params.sub_(1)


def deltas(module: LightningModule, **settings: Any) -> Tensor:
    orchestrator, capture = FederatedOrchestrator(module, on_bad_update="raise", **settings), Capture()
    trainer(Sinks(), capture).fit(orchestrator, datamodule=GivenData(ROWS, samples=STEPS, steps=STEPS))
    assert SEEN[orchestrator].group_size == settings.get("clients_at_once", 1)
    return capture.cohort.deltas


@pytest.mark.parametrize("at_once", [1, 3])
def test_momentum_does_not_see_the_change(at_once: int) -> None:
    """Momentum 0.5: τ = 2, 5, 3 steps of a constant gradient add up to 2.5, 8.0625 and 4.25 gradients.

    1 + 1.5 = 2.5; + 1.75 = 4.25; + 1.875 + 1.9375 = 8.0625. A client that is done stays where it is.
    """
    reached = torch.tensor([[2.5], [8.0625], [4.25]], dtype=torch.float64)
    expected = -0.1 * reached * ROWS - torch.tensor([[2.0], [5.0], [3.0]], dtype=torch.float64)
    assert close(deltas(Linear(2, lr=0.1, momentum=0.5), clients_at_once=at_once), expected)


def test_once_for_each_step_of_several_batches() -> None:
    """Two batches a step: 1, 3 and 2 steps of the mean gradient, the last of one batch alone weighs a half."""
    batches = torch.tensor([[2.0], [5.0], [3.0]], dtype=torch.float64)
    expected = -0.1 * batches / 2 * ROWS - torch.tensor([[1.0], [3.0], [2.0]], dtype=torch.float64)
    assert close(deltas(Linear(2, lr=0.1), accumulate_grad_batches=2), expected)


class Halves(LightningModule):
    """One optimizer for each of two parameters; the second steps at the client's first batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.a, self.b = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()  # type: ignore[misc]
        first.zero_grad()
        self.manual_backward((self.a + self.b).sum())
        first.step()
        if batch_idx == 0:
            second.step()

    def configure_optimizers(self) -> Any:
        return [SGD([self.a], lr=0.1), SGD([self.b], lr=0.1)]


def test_the_parameters_of_another_optimizer_stay() -> None:
    """Each step lowers its own parameter by 0.1 and by 1."""
    assert close(deltas(Halves()), [[-2.2, -1.1], [-5.5, -1.1], [-3.3, -1.1]])


def test_no_hook_of_a_monitor() -> None:
    with pytest.raises(ConfigurationError, match="is a Monitor, which changes nothing, but defines on_after_client_st"):
        type("Pushes", (Monitor,), {"on_after_client_step": Sinks.on_after_client_step})
