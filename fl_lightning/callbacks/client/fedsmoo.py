"""FedSMOO: FedDyn for a flat minimum of the global objective."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, LocalRun, Server, check_not_negative, check_positive
from fl_lightning.callbacks.client.feddyn import FedDyn
from fl_lightning.callbacks.client.fedsam import along, following

EPSILON = 1e-7  # added to the norms, as in the released code


class FedSMOO(FedDyn):
    """Takes each client's gradient at a perturbed model and adds FedDyn's terms to it (Sun et al., 2023, Algorithm 1).

    This is the method's released form. Each step perturbs the model by ŝ = r·d/‖d‖ with d = g - μ_i - s, where g is the
    gradient at w, then sets μ_i ← μ_i + ŝ - s, and follows the gradient at w + ŝ plus λ(h_i + w - w_t). Clients send
    μ_i; the server sets s = r·μ̄/‖μ̄‖, where μ̄ is the cohort's mean of μ_i (the paper's s also includes each client's
    last ŝ). The rest is :class:`FedDyn` with α = λ and λ_i = -λ h_i: h_i gains Δ_i, and w = mean_S(w_i) + the mean h_i
    of all N clients. The variables h_i, μ_i and s start at zero.

    Args:
        penalty: λ > 0, weight of the dual and proximal terms (1/β in the paper).
        rho: r >= 0, length of the perturbation; 0 leaves the perturbation out, which is FedDyn.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"base weights", "local gradient"})
    broadcasts = ("s",)
    stacks = True

    def __init__(self, penalty: float = 0.1, rho: float = 0.1) -> None:
        check_positive(penalty=penalty)
        check_not_negative(rho=rho)
        super().__init__(penalty)
        self.penalty, self.rho = penalty, rho

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        super().on_client_start(orchestrator, run)
        zeros = torch.zeros_like(run.anchor)
        self._s = self.recall("s", zeros)
        run.kept["mu"] = self.recall(f"mu/{run.client}", zeros).clone()  # since closure changes mu in place

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        def perturbed_gradient() -> Tensor:
            mu = run.kept["mu"]
            step = along(run.grads - mu - self._s, self.rho, EPSILON)
            mu.add_(step).sub_(self._s)
            return run.gradient_at(run.params + step, closure)

        return following(run, closure, perturbed_gradient) if self.rho else closure

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        if self.rho:
            run.send("mu", run.kept["mu"])

    @override
    def sends(self, orchestrator: Server) -> Mapping[str, Tensor]:
        return {"mu": orchestrator.params} if self.rho else {}

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        if self.rho:
            mean = torch.zeros_like(update)
            for result in cohort.results:
                mean += result.vectors["mu"].to(mean) / len(cohort.results)
                self.state[f"mu/{result.client}"] = result.vectors["mu"].cpu()
            self.state["s"] = along(mean, self.rho, EPSILON)
        return super().update(orchestrator, cohort, update)
