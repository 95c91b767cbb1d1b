"""FedGAM: clients look for minima whose neighbourhood has small gradients."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, LocalRun, Server
from fl_lightning.callbacks.client.fedsam import ascent
from fl_lightning.errors import check_choice

GAMMA = 0.03  # of the released code: how much of the plain gradients is climbed where the flatness does not mind


def paper_gradient(w: Tensor, g: Tensor, at: Callable[[Tensor], Tensor], alpha: float, rho: float) -> Tensor:
    """Eq. 19: g + αρ ∇f(w + ρ g/‖g‖), (P,), from g = ∇f(w) (P,) and ``at``, ∇f at any other parameters."""
    return g + alpha * rho * at(w + ascent(g, rho))


def released_gradient(w: Tensor, g: Tensor, at: Callable[[Tensor], Tensor], rho: float, rho_prime: float) -> Tensor:
    """The released code's ("accelerated GAM"), from g₀ = ∇f(w) (P,) and ``at``, ∇f at any other parameters.

    g₁ = ∇f(w + ρ g₀/‖g₀‖), e = ρ' (g₁ - g₀)/‖g₁ - g₀‖, g₂ = ∇f(w + e), g₃ = ∇f(w + e + ρ g₂/‖g₂‖), G = g₁ + g₃: the
    result, (P,), is G - 0.03·(the part of g₀ + g₂ orthogonal to G). A zero vector has no direction and moves nothing.
    """
    g_1 = at(w + ascent(g, rho))
    moved = w + ascent(g_1 - g, rho_prime)
    g_2 = at(moved)
    total, plain = g_1 + at(moved + ascent(g_2, rho)), g + g_2
    squared = total @ total
    along = torch.where(squared > 0, plain @ total / squared, 0.0)
    return total - GAMMA * (plain - along * total)


class FedGAM(FederatedCallback):
    """Gradient-norm-aware local training (Xu et al., 2024, Algorithm 1), averaged uniformly.

    Norms are over all parameters. Passes after the first leave BatchNorm statistics and what the module logs alone.

    Args:
        variant: "released" follows what the authors' code follows, about twice the loss's gradient, in four passes; the
            default, as the paper's results come from it. "paper" is eq. 19 as printed, about 1 + αρ times the loss's
            gradient, in two passes.
        alpha: α >= 0, weight of the flatness; 0 is uniform FedAvg. Acts in "paper" alone.
        rho: ρ >= 0, length of the steps along the gradient. Acts in both.
        rho_prime: ρ' >= 0, length of the step e to where gradients are larger. Acts in "released" alone.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"base weights", "local gradient"})

    def __init__(
        self,
        variant: Literal["paper", "released"] = "released",
        alpha: float = 0.2,
        rho: float = 0.02,
        rho_prime: float = 0.2,
    ) -> None:
        check_choice("variant", variant, "paper", "released")
        for name, value in (("alpha", alpha), ("rho", rho), ("rho_prime", rho_prime)):
            if not 0 <= value < float("inf"):
                raise ConfigurationError(f"{name} must be at least 0 and finite, got {value}")
        self.variant, self.alpha, self.rho, self.rho_prime = variant, alpha, rho, rho_prime

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        if self.variant == "paper" and not self.alpha * self.rho:
            return closure

        def flat() -> Tensor | None:
            loss = closure()
            if loss is not None:
                run.grads.copy_(self._gradient(run.params, run.grads.clone(), closure, run))
            return loss

        return flat

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.uniform()

    def _gradient(self, w: Tensor, g: Tensor, closure: Callable[[], Tensor | None], run: LocalRun) -> Tensor:
        def at(point: Tensor) -> Tensor:
            return run.gradient_at(point, closure)

        if self.variant == "paper":
            return paper_gradient(w, g, at, self.alpha, self.rho)
        return released_gradient(w, g, at, self.rho, self.rho_prime)
