"""FedNova: clients that take more steps count no more per step."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server


class FedNova(FederatedCallback):
    """Scales each update so that a client that takes more steps counts no more per step (Wang et al., 2020, eq. 8).

    The new model is w - τ_eff Σ p_k d_k with d_k = -Δ_k / ‖a_k‖₁, where p_k is client k's weight and Δ_k its update.
    ‖a_k‖₁ is the number of local steps for plain SGD; momentum and proximal terms change ‖a_k‖₁ (the paper's
    Section 4). The effective number of steps is τ_eff = Σ p_k ‖a_k‖₁. With equal ‖a_k‖₁ this is FedAvg. A client that
    takes no step adds nothing.

    With a proximal term, the released code takes τ_eff = Σ p_k τ_k, where τ_k is the number of local steps: the new
    model moves further, by the factor Σ p_k τ_k / Σ p_k ‖a_k‖₁ > 1. If clients have momentum, too, that code's ‖a_k‖₁
    is not the total weight of the gradients in the update: each step takes c ← ρc + 1 and a ← (a + c)(1 - ημ) + 1. Here
    ‖a_k‖₁ is that total weight.
    """

    settles = frozenset({"updates"})
    reads = frozenset({"steps"})
    streams = True

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        effective = cohort.weights @ cohort.normalizers
        return cohort.scaled(torch.where(cohort.normalizers > 0, effective / cohort.normalizers, 0.0))

    @override
    def stream_weights(self, orchestrator: Server, cohort: Cohort, weights: Tensor) -> Tensor:
        return torch.where(cohort.normalizers > 0, weights / cohort.normalizers, 0.0)
