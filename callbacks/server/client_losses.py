"""ClientLosses: base of rules that weigh clients by how badly the global model serves them."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, LocalRun, Server

LOSS = "loss"


class ClientLosses(FederatedCallback, ABC):
    """Lets clients send the mean loss of their examples at the model that they start from, one pass over their data."""

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.send(LOSS, orchestrator.client_loss(run.client, run.anchor))

    @abstractmethod
    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort: ...

    def losses(self, cohort: Cohort) -> Tensor:
        """Return the losses (K,) that the clients of a cohort have sent, float64."""
        return torch.tensor([float(result.vectors[LOSS]) for result in cohort.results], dtype=torch.float64)
