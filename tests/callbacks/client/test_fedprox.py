"""FedProx on the toy problem, by hand."""

from typing import Any

import torch
from lib.toy import ETA, Capture, Quadratic, ToyData, close, train, trainer

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedProx


def test_one_round_of_the_toy_problem() -> None:
    """μ = 0.5. Client 0: (0.1, -0.2), then g = (-0.9, 1.6) + 0.5·(0.1, -0.2) = (-0.85, 1.5): (0.185, -0.35).

    Client 1: (-0.6, 0.1); g = (4.2, -0.95) + (-0.3, 0.05): (-0.99, 0.19); g = (3.03, -0.905) + (-0.495, 0.095):
    (-1.2435, 0.271). ((0.185 - 3.7305)/4, (-0.35 + 0.813)/4).
    """
    capture = Capture()
    assert close(train(FedProx(0.5), capture), (-0.886375, 0.11575))
    assert close(torch.stack(capture.params), ((0.185, -0.35), (-1.2435, 0.271)))


def test_the_term_is_inside_momentum() -> None:
    """μ = 0.5, momentum 0.9, client 0: v = (-1, 2), then g = (-0.85, 1.5), v = (-1.75, 3.3): (0.275, -0.53)."""
    capture = Capture()
    train(FedProx(0.5), capture, momentum=0.9)
    assert close(capture.params[0], (0.275, -0.53))


def test_stays_near_the_model_of_its_own_round() -> None:
    """From (-0.886375, 0.11575), client 0's first step feels no pull: w - ηA(w - B) = (-0.6977375, -0.1074).

    Its second: g = (-1.6977375, 1.7852) + 0.5·(0.1886375, -0.22315) = (-1.60341875, 1.673625).
    """
    capture = Capture()
    train(FedProx(0.5), capture, rounds=2)
    assert close(capture.params[2], (-0.6977375 + 0.160341875, -0.1074 - 0.1673625))


class TwoOptimizers(Quadratic):
    """T with manual optimization and an optimizer for each coordinate, each with its own backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.v = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        (a,), (b,) = batch
        for i, optimizer in enumerate(self.optimizers()):
            optimizer.zero_grad()
            parameter = (self.w, self.v)[i]
            self.manual_backward((a[i] * (parameter - b[i]) ** 2 / 2).sum())
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.w], lr=ETA), torch.optim.SGD([self.v], lr=ETA)


def test_reaches_every_optimizer_of_a_manual_module() -> None:
    """The coordinates of T do not interact: the same as with one optimizer."""
    orchestrator = FederatedOrchestrator(TwoOptimizers())
    trainer(FedProx(0.5)).fit(orchestrator, datamodule=ToyData())
    assert close(orchestrator.params, (-0.886375, 0.11575))
