"""FedGAM-CV: gradient-norm-aware local training with control variates."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, LocalRun, Server
from fl_lightning.callbacks.client.fedgam import FedGAM
from fl_lightning.callbacks.client.scaffold import Scaffold


class FedGAMCV(Scaffold):
    """Adds control variates to FedGAM's gradient of each client, against client drift (Xu et al., 2024, Algorithm 2).

    Clients follow the gradient of :class:`FedGAM` + c - c_i. The control variates are those of :class:`Scaffold`
    (option II), but c gains (1/K) Σ_S Δc_i, the mean over the cohort (eq. 22). As in :class:`Scaffold`, η_i ‖a_i‖₁
    replaces the paper's ηE, where E is the number of minibatch steps; for plain SGD both are the same.

    Args:
        variant: "released", the default since the paper's results come from the released code, or "paper": see
            :class:`FedGAM`.
        alpha: α >= 0, weight of the flatness term. Used by "paper" alone.
        rho: ρ >= 0, length of the steps along the gradient. Used by both variants.
        rho_prime: ρ' >= 0, length of the step towards larger gradients. Used by "released" alone.

    Raises:
        ConfigurationError: an argument is out of range; the clients' optimizer is not SGD, or its learning rate or
            momentum differs between parameters.
    """

    settles = Scaffold.settles | {"local gradient"}
    stacks = True

    def __init__(
        self,
        variant: Literal["paper", "released"] = "released",
        alpha: float = 0.2,
        rho: float = 0.02,
        rho_prime: float = 0.2,
    ) -> None:
        super().__init__()
        self.gam = FedGAM(variant, alpha, rho, rho_prime)

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        return self.gam.closure(run, closure)

    def _divisor(self, orchestrator: Server, cohort: Cohort) -> int:
        return len(cohort.clients)
