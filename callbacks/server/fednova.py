"""FedNova: clients that take more steps count no more per step."""

import torch
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server


class FedNova(FederatedCallback):
    """Normalised averaging (Wang et al., 2020, eq. 8): w - τ_eff Σ p_k d_k with d_k = -Δ_k / ‖a_k‖₁.

    ‖a_k‖₁ is the number of local steps for plain SGD; momentum and proximal terms enter it (Section 4 there). The
    effective number of steps is τ_eff = Σ p_k ‖a_k‖₁. With equal ‖a_k‖₁ this is FedAvg. A client without a step moves
    nothing.
    """

    settles = frozenset({"updates"})

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        effective = cohort.weights @ cohort.normalizers
        return cohort.scaled(torch.where(cohort.normalizers > 0, effective / cohort.normalizers, 0.0))
