"""FedDyn: local objectives that agree with the global objective at its minimum."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, LocalRun, Server, check_positive
from fl_lightning.callbacks.client.fedprox import pull


class FedDyn(FederatedCallback):
    """Adds a dual and a proximal term to each client's gradient, and a dual step on the server (Acar et al., 2021).

    Client i minimises f_i(θ) - ⟨λ_i, θ⟩ + (α/2)‖θ - w‖² and sends its update Δ_i (Algorithm 1). Then λ_i ← λ_i - αΔ_i,
    h ← h - (α/N) Σ_S Δ_i, and w ← mean_S(w + Δ_i) - h/α, where S is the cohort and N the number of clients that have
    data. The dual variables λ_i and h start at zero. If local training comes near the minimum of client i's objective,
    with whichever optimizer, the new λ_i is about ∇f_i at that minimum. Once the clients do not move any more,
    Σ ∇f_i = 0. The dual step -h/α is added to the weighted sum: server momentum that is listed after FedDyn includes
    the dual step; rules that are listed before FedDyn do not see the dual step.

    FedDyn together with :class:`FedSAM` is FedSpeed (Sun et al., 2023) in its released form; :class:`FedSpeed` is the
    paper's Algorithm 1.

    The released code differs from Algorithm 1 in two settings. It gives client i the weight α_i = α / (N n_i / Σ n) in
    place of α, in the local objective and in the step of λ_i, where n_i is the client's number of examples and the sum
    is over all clients; the server's step stays as above. At the limit, Σ n_i ∇f_i = 0 in place of Σ ∇f_i = 0. This is
    ``alpha_by_size=True``. It also clips local gradients to norm 10, as ``model.gradient_clip_val: 10`` does; there the
    term α_i θ is part of the weight decay, which that code adds after clipping, and here it is clipped with the rest.

    Args:
        alpha: α > 0, weight of the proximal and dual terms; the paper uses 0.001 to 0.1. With a small α the rule is not
            near FedAvg: h/α, the sum of the updates divided by N, does not shrink with α.
        alpha_by_size: whether α is divided by each client's size, in units of the clients' mean size, as in the
            released code.

    Raises:
        ConfigurationError: alpha is out of range.
    """

    settles = frozenset({"base weights"})
    stacks = True

    def __init__(self, alpha: float = 0.1, alpha_by_size: bool = False) -> None:
        check_positive(alpha=alpha)
        self.alpha, self.alpha_by_size = alpha, alpha_by_size

    def alpha_of(self, num_samples: int, sizes: Tensor) -> float:
        """Return α_i, the weight of the terms of a client with ``num_samples`` examples, given all ``sizes`` (N,)."""
        if not self.alpha_by_size:
            return self.alpha
        mean = int(sizes.sum()) / int((sizes > 0).sum())
        return self.alpha * mean / num_samples

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        alpha = self.alpha_of(run.num_samples, run.sizes)
        run.proximal += alpha  # FedNova's normalizer depends on the weight of proximal terms
        run.kept["feddyn"] = -self.recall(f"lambda/{run.client}", torch.zeros_like(run.anchor))
        if self.alpha_by_size:
            run.kept["feddyn/alpha"] = torch.full_like(run.anchor[:1], alpha)

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        pull(run, run.kept["feddyn/alpha"] if self.alpha_by_size else self.alpha, run.kept["feddyn"])

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.uniform()

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        for client, size, delta in zip(cohort.clients, cohort.num_samples.tolist(), cohort.rows(), strict=True):
            name = f"lambda/{client}"
            moved = self.recall(name, torch.zeros_like(delta)) - self.alpha_of(size, orchestrator.data.sizes) * delta
            self.state[name] = moved.cpu()  # the vectors of many clients may not fit on a GPU
        share = self.alpha / orchestrator.data.num_with_data
        self.state["h"] = self.recall("h", torch.zeros_like(update)) - share * cohort.combine(
            torch.ones_like(cohort.weights)
        )
        return update - self.state["h"] / self.alpha
