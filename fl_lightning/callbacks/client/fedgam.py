"""FedGAM: clients look for minima whose neighbourhood has small gradients."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, LocalRun, Server, check_choice, check_not_negative
from fl_lightning.callbacks.client.fedsam import ahead, following

GAMMA = 0.03  # factor, in the released code, on the part of g₀ + g₂ that is orthogonal to G: see released_gradient


def paper_gradient(w: Tensor, g: Tensor, at: Callable[[Tensor], Tensor], alpha: float, rho: float) -> Tensor:
    """Compute the gradient of eq. 19: g + αρ ∇f(w + ρ g/‖g‖).

    For f(w) = w²/2 the gradient at any w is w itself. At w = 2 with ρ = 1 the second gradient is taken at 3:

    >>> import torch
    >>> from fl_lightning.callbacks.client.fedgam import paper_gradient
    >>> w = torch.tensor([2.0])
    >>> paper_gradient(w, g=w, at=lambda point: point, alpha=0.5, rho=1.0)  # 2 + 0.5 · 3
    tensor([3.5000])

    Args:
        w: (…, P) parameters, of one client or several.
        g: (…, P) the gradient ∇f(w).
        at: function from parameters (…, P) to the gradient ∇f (…, P) at these parameters.
        alpha: α, weight of the flatness term.
        rho: ρ, length of the step along g.

    Returns:
        (…, P) gradient to follow.
    """
    return torch.add(g, at(ahead(w, g, rho)), alpha=alpha * rho)


def released_gradient(w: Tensor, g: Tensor, at: Callable[[Tensor], Tensor], rho: float, rho_prime: float) -> Tensor:
    """Compute the gradient of the released code ("accelerated GAM").

    With g₀ = ∇f(w), g₁ = ∇f(w + ρ g₀/‖g₀‖), e = ρ' (g₁ - g₀)/‖g₁ - g₀‖, g₂ = ∇f(w + e), g₃ = ∇f(w + e + ρ g₂/‖g₂‖) and
    G = g₁ + g₃, the result is G - 0.03·(the part of g₀ + g₂ orthogonal to G). A zero vector has no direction: a step
    along a zero vector is zero.

    Args:
        w: (…, P) parameters, of one client or several.
        g: (…, P) the gradient g₀.
        at: function from parameters (…, P) to the gradient ∇f (…, P) at these parameters.
        rho: ρ, length of the steps along g₀ and g₂.
        rho_prime: ρ', length of the step e.

    Returns:
        (…, P) gradient to follow.
    """
    g_1 = at(ahead(w, g, rho))
    moved = ahead(w, g_1 - g, rho_prime)
    g_2 = at(moved)
    total = g_1 + at(ahead(moved, g_2, rho))
    plain = g + g_2
    squared = torch.linalg.vecdot(total, total).unsqueeze(-1)
    product = torch.linalg.vecdot(plain, total).unsqueeze(-1)
    along = torch.where(squared > 0, product / squared, 0.0)
    return total.mul_(1 + GAMMA * along).sub_(plain, alpha=GAMMA)


class FedGAM(FederatedCallback):
    """Steers each client's gradient towards minima around which gradients stay small (Xu et al., 2024, Algorithm 1).

    The server averages uniformly. Norms are over all parameters. A step takes several forward and backward passes; only
    the first pass updates BatchNorm statistics and counts in what the module logs.

    Args:
        variant: "released" follows the gradient of the authors' code, about twice the loss's gradient, in four passes.
            It is the default because the paper's results come from this code. "paper" follows eq. 19 as printed, about
            1 + αρ times the loss's gradient, in two passes.
        alpha: α >= 0, weight of the flatness term; 0 is uniform FedAvg. Used by "paper" alone.
        rho: ρ >= 0, length of the steps along the gradient. Used by both variants.
        rho_prime: ρ' >= 0, length of the step e towards larger gradients. Used by "released" alone.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"base weights", "local gradient"})
    stacks = True
    streams = True

    def __init__(
        self,
        variant: Literal["paper", "released"] = "released",
        alpha: float = 0.2,
        rho: float = 0.02,
        rho_prime: float = 0.2,
    ) -> None:
        check_choice("variant", variant, "paper", "released")
        check_not_negative(alpha=alpha, rho=rho, rho_prime=rho_prime, **{"alpha × rho": alpha * rho})
        self.variant, self.alpha, self.rho, self.rho_prime = variant, alpha, rho, rho_prime

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        if self.variant == "paper" and not self.alpha * self.rho:
            return closure

        def at(point: Tensor) -> Tensor:
            return run.gradient_at(point, closure)

        def flat() -> Tensor:
            if self.variant == "paper":
                return paper_gradient(run.params, run.grads, at, self.alpha, self.rho)
            return released_gradient(run.params, run.grads, at, self.rho, self.rho_prime)

        return following(run, closure, flat)

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.uniform()

    @override
    def stream_weights(self, orchestrator: Server, cohort: Cohort, weights: Tensor) -> Tensor:
        return torch.ones_like(weights)
