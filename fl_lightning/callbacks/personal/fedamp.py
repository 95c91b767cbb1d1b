"""FedAMP: clients that are pulled to the models of clients like them."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Buffers, Cohort, FederatedCallback, LocalRun, Server, check_not_negative, check_positive
from fl_lightning.callbacks.client.fedprox import pull
from fl_lightning.callbacks.server.krum import squared_distances


def message_weights(squared: Tensor, alpha: float, sigma: float) -> Tensor:
    """Compute how much of each client's model enters each client's own cloud model.

    Client i's model enters that of client j ≠ i with α e^(-d² / σ) / σ, where d is the distance of the two; what is
    missing to 1 is the client's own. Two models of squared distance 1, α = σ = 1:

    >>> import torch
    >>> from fl_lightning.callbacks.personal.fedamp import message_weights
    >>> message_weights(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), alpha=1.0, sigma=1.0)
    tensor([[0.6321, 0.3679],
            [0.3679, 0.6321]])

    Args:
        squared: (K, K) squared distances of the models.
        alpha: α > 0.
        sigma: σ > 0.

    Returns:
        (K, K) weights ξ, whose rows sum to 1.
    """
    weights = alpha / sigma * (-squared / sigma).exp()
    weights.fill_diagonal_(0)
    return weights + (1 - weights.sum(1)).diag()


class FedAMP(FederatedCallback):
    """Gives each client a cloud model of its own, in which models like its own weigh most (Huang et al., 2021).

    Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", Algorithm 1, with A(d²) = 1 - e^(-d²/σ).
    A client starts from its cloud model u_k, and is pulled there by λ/(2α) ‖w - u_k‖²; its own model serves it. PFLlib
    starts clients from their own models and takes the norm in place of its square. The cloud models are of the last
    models of all clients that have taken part so far: the server keeps these, N × P numbers. Where ξ_kk would be below
    0, α is too large for σ and the number of clients. The global model moves by the mean of the updates, and serves
    only clients that have not taken part yet.

    Args:
        alpha: α > 0, length of the server's step.
        sigma: σ > 0, in units of a squared distance of two models.
        lam: λ >= 0, strength of the pull.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    starts_at_server = True
    stacks = True
    needs_each_client = "starts each client from another model"

    def __init__(self, alpha: float = 1.0, sigma: float = 1.0, lam: float = 1.0) -> None:
        check_positive(alpha=alpha, sigma=sigma)
        check_not_negative(lam=lam)
        self.alpha, self.sigma, self.lam = alpha, sigma, lam

    @override
    def start(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        if "clients" not in self.state or client not in (known := self.state["clients"].tolist()):
            return params, buffers
        cloud = torch.zeros_like(params)
        for other, weight in zip(known, self.state["weights"][known.index(client)].tolist(), strict=True):
            cloud.add_(self.recall(f"model/{other}", params), alpha=weight)
        return cloud, buffers

    @override
    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return self.recall(f"model/{client}", params), buffers

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.proximal += self.lam / self.alpha

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        pull(run, self.lam / self.alpha)

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        models: dict[int, Tensor] = {}
        for client, row in zip(cohort.clients, cohort.mixing, strict=True):
            began, _ = self.start(orchestrator, client, cohort.anchor, ())
            models[client] = began + cohort.combine(row)
        for client, model in models.items():
            self.state[f"model/{client}"] = model.cpu()
        known = {*cohort.clients, *self.state.get("clients", torch.tensor([])).int().tolist()}
        self.state["clients"] = torch.tensor(sorted(known))
        # Less the global model, so that rounding does not drown the distances.
        apart = [self.recall(f"model/{client}", cohort.anchor) - cohort.anchor for client in sorted(known)]
        squared = squared_distances(cohort.replace(deltas=torch.stack(apart)).gram)
        self.state["weights"] = message_weights(squared, self.alpha, self.sigma)
        return cohort
