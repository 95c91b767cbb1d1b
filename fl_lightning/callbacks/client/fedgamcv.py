"""FedGAM-CV: gradient-norm-aware local training with control variates."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, LocalRun, Server, check_choice
from fl_lightning.callbacks.client.fedgam import FedGAM
from fl_lightning.callbacks.client.scaffold import Scaffold


class FedGAMCV(Scaffold):
    """Adds control variates to FedGAM's gradient of each client, against client drift (Xu et al., 2024, Algorithm 2).

    All control variates start at zero, and the server averages uniformly. η_i is the client's learning rate, the first
    one of a schedule; τ_i is its number of steps.

    The paper's control variates are those of :class:`Scaffold` (option II): c - c_i is added to FedGAM's gradient, so
    that momentum accumulates this correction. c gains (1/K) Σ_S (c_i⁺ - c_i), the mean over the cohort (eq. 22). As in
    :class:`Scaffold`, η_i ‖a_i‖₁ replaces the paper's ηE, where E is the number of minibatch steps; for plain SGD both
    are the same.

    The released code's differ in three places. The weights move by -η_i (c - c_i) after each step of the optimizer, so
    that neither momentum nor clipping acts on the correction. c_i⁺ = c_i - c - Δ_i / (η_i τ_i), also with momentum. c
    gains (1/N) Σ_S (c_i⁺ - c_i), where N is the number of clients with data. Two details of that code are left out: it
    weighs clients by n_k, and it starts all control variates at one random network, which matters only if not all
    clients take part in every round.

    Args:
        variant: whose gradient, and whose control variates: "released", the default since the paper's results come from
            the released code, or "paper". See :class:`FedGAM` for the gradients.
        alpha: α >= 0, weight of the flatness term. Used by "paper" alone.
        rho: ρ >= 0, length of the steps along the gradient. Used by both variants.
        rho_prime: ρ' >= 0, length of the step towards larger gradients. Used by "released" alone.
        control: whose control variates, if they are not those of ``variant``: "paper" may stand beside the
            released gradient.

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
        control: Literal["paper", "released"] | None = None,
    ) -> None:
        super().__init__()
        self.variant, self.alpha, self.rho, self.rho_prime = variant, alpha, rho, rho_prime  # for records of the run
        self.gam = FedGAM(variant, alpha, rho, rho_prime)
        self.control = variant if control is None else control
        check_choice("control", self.control, "paper", "released")

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        super().on_client_start(orchestrator, run)
        if self.control == "released":
            run.kept["scaffold"] *= run.learning_rate

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        return self.gam.closure(run, closure)

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        if self.control == "paper":
            super().on_before_client_step(run)

    @override
    def on_after_client_step(self, run: LocalRun) -> None:
        if self.control == "released":
            run.params.sub_(run.kept["scaffold"])

    def _reaches(self, cohort: Cohort) -> Tensor:
        return cohort.learning_rates * cohort.num_steps if self.control == "released" else super()._reaches(cohort)

    def _divisor(self, orchestrator: Server, cohort: Cohort) -> int:
        return super()._divisor(orchestrator, cohort) if self.control == "released" else len(cohort.clients)
