"""FedADMM: clients keep a model and a dual variable each, and send what both have changed by."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_positive
from fl_lightning.callbacks.client.fedprox import pull


class FedADMM(FederatedCallback):
    """Trains each client on its augmented Lagrangian, from its own last model (Gong et al., 2022, Algorithm 1).

    The gradient gains y_k + ρ (w_k - w); after training, y_k ← y_k + ρ (w_k - w). A client sends what w_k + y_k / ρ has
    changed by. In its first participation, w_k starts at the global model, and y_k is zero. The released code starts
    w_k at the global model in every round. The paper's server step η is ``model.server_optimizer``'s learning rate, and
    its average is uniform: set ``FedAvg(weighting: uniform)``.

    Args:
        rho: ρ > 0, weight of the pull.

    Raises:
        ConfigurationError: ``rho`` is not positive.
    """

    stacks = True

    def __init__(self, rho: float = 0.01) -> None:
        check_positive(rho=rho)
        self.rho = rho

    def _last(self, run: LocalRun) -> tuple[Tensor, Tensor]:
        """Return the client's model and dual variable, each (P,), of its last participation."""
        dual = self.recall(f"dual/{run.client}", torch.zeros_like(run.anchor))
        return self.recall(f"model/{run.client}", run.anchor), dual

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        model, run.kept["dual"] = self._last(run)
        run.params.copy_(model)
        run.proximal += self.rho

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        pull(run, self.rho, run.kept["dual"])

    @override
    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        model, dual = self._last(run)
        self.keep(run, "model", run.params)
        self.keep(run, "dual", dual + self.rho * (run.params - run.anchor))
        return update + (run.params - model)
