"""FedDyn: local objectives that agree with the global objective at its minimum."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, LocalRun, Server
from fl_lightning.callbacks.client.fedprox import pull
from fl_lightning.errors import check_positive


class FedDyn(FederatedCallback):
    """Adds a dual and a proximal term to each client's gradient, and a dual step on the server (Acar et al., 2021).

    Client i minimises f_i(θ) - ⟨λ_i, θ⟩ + (α/2)‖θ - w‖² and sends its update Δ_i (Algorithm 1). Then λ_i ← λ_i - αΔ_i,
    h ← h - (α/N) Σ_S Δ_i, and w ← mean_S(w + Δ_i) - h/α, where S is the cohort and N the number of clients that have
    data. The dual variables λ_i and h start at zero. If local training comes near the minimum of client i's objective,
    with whichever optimizer, the new λ_i is about ∇f_i at that minimum. Once the clients do not move any more,
    Σ ∇f_i = 0. The dual step -h/α is added to the weighted sum: server momentum that is listed after FedDyn includes
    the dual step; rules that are listed before FedDyn do not see the dual step.

    FedDyn together with :class:`FedSAM` is FedSpeed (Sun et al., 2023) in its released form.

    Args:
        alpha: α > 0, weight of the proximal and dual terms; the paper uses 0.001 to 0.1. With a small α the rule is not
            near FedAvg: h/α, the sum of the updates divided by N, does not shrink with α.

    Raises:
        ConfigurationError: alpha is out of range.
    """

    settles = frozenset({"base weights"})
    stacks = True

    def __init__(self, alpha: float = 0.1) -> None:
        check_positive(alpha=alpha)
        self.alpha = alpha

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.proximal += self.alpha  # FedNova's normalizer depends on the weight of proximal terms
        run.kept["feddyn"] = -self.recall(f"lambda/{run.client}", torch.zeros_like(run.anchor))

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        pull(run, self.alpha, run.kept["feddyn"])

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.uniform()

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        for client, delta in zip(cohort.clients, cohort.rows(), strict=True):
            name = f"lambda/{client}"
            moved = self.recall(name, torch.zeros_like(delta)) - self.alpha * delta
            self.state[name] = moved.cpu()  # the vectors of many clients may not fit on a GPU
        share = self.alpha / orchestrator.data.num_with_data
        self.state["h"] = self.recall("h", torch.zeros_like(update)) - share * cohort.combine(
            torch.ones_like(cohort.weights)
        )
        return update - self.state["h"] / self.alpha
