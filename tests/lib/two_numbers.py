"""A module of two numbers, a shared and an own one, and clients whose gradients are given."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator, Server
from lib.toy import GivenData, trainer

ROWS = torch.tensor([[-1.0, -1.0], [-3.0, 2.0]], dtype=torch.float64)  # steps of 1 and 1; of 3 and -2


class Two(LightningModule):
    """f_k = shared · a_k + own · b_k, under SGD with the rate 1."""

    def __init__(self, **sgd: Any) -> None:
        super().__init__()
        self.sgd = sgd
        self.shared = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.own = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return (batch[0] * torch.cat([self.shared, self.own])).sum() + batch[1].sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0, **self.sgd)


class Served(FederatedCallback):
    """Looks up the models that serve the clients."""

    models: list[list[float]]

    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        assert orchestrator.personal_model is not None
        self.models = [orchestrator.personal_model(client)[0].tolist() for client in range(2)]


def served(*rules: Any, rounds: int = 1, steps: int = 1, sgd: Any = None, **settings: Any) -> Any:
    """The global model after some rounds, and the models that serve the two clients."""
    orchestrator, look = FederatedOrchestrator(Two(**(sgd or {})), on_bad_update="raise", **settings), Served()
    data = GivenData(ROWS, samples=[steps] * 2, steps=[steps] * 2)
    trainer(*rules, look, rounds=rounds).fit(orchestrator, datamodule=data)
    return orchestrator.params.tolist(), look.models
