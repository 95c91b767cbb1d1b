"""ClientLosses: base of rules that weigh clients by how badly the global model serves them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, LocalRun, Server, TrainingError

LOSS = "loss"


class ClientLosses(FederatedCallback, ABC):
    """Lets clients send the mean loss of their examples at the model that they start from, one pass over their data."""

    reads = frozenset({"losses"})

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.send(LOSS, orchestrator.client_loss(run.client, run.anchor))

    @override
    def sends(self, orchestrator: Server) -> Mapping[str, Tensor]:
        return {LOSS: torch.zeros((), dtype=torch.float64)}

    @abstractmethod
    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort: ...

    def losses(self, cohort: Cohort) -> Tensor:
        """Return the losses (K,) that the clients of a cohort have sent, float64.

        Raises:
            TrainingError: a loss is infinite or nan.
        """
        losses = torch.tensor([float(result.vectors[LOSS]) for result in cohort.results], dtype=torch.float64)
        for client, loss in zip(cohort.clients, losses.tolist(), strict=True):
            if not math.isfinite(loss):
                raise TrainingError(
                    f"round {cohort.round}: {type(self).__name__} weighs clients by their losses at the global model, "
                    f"but that of client {client} is {loss}: the model has diverged; set a smaller learning rate, or "
                    "max_update_norm"
                )
        return losses
