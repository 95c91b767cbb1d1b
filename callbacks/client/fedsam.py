"""FedSAM: clients follow the gradient of a point uphill, for flat minima."""

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedCallback, LocalRun

ETA = 0.01  # η of ASAM: the smallest scale, so that a parameter at zero is perturbed, too


def along(gradient: Tensor, length: float, epsilon: float = 0.0) -> Tensor:
    """A step of a given length along a vector; zero for a zero one.

    Args:
        gradient: (P,).
        length: of the step.
        epsilon: added to the vector's norm, as some released codes do: a much shorter one makes a shorter step.

    Returns:
        (P,).
    """
    norm = gradient.norm() + epsilon
    return length * torch.where(norm > 0, gradient / norm, 0.0)


def ascent(gradient: Tensor, rho: float, scale: Tensor | None = None) -> Tensor:
    """The perturbation of length ρ that raises the loss most, to first order: ρ g / ‖g‖.

    Args:
        gradient: (P,) g.
        rho: ρ, the radius.
        scale: (P,) T, for the radius to be that of ‖ε / T‖ (ASAM): ρ T² g / ‖T g‖.

    Returns:
        ε, (P,); zero where the gradient is.
    """
    return along(gradient, rho) if scale is None else scale * along(scale * gradient, rho)


class FedSAM(FederatedCallback):
    """Sharpness-aware local training: each step follows the gradient at w + ε, where ε = ρ g(w) / ‖g(w)‖.

    Foret et al., 2021, eq. 2 and 3; on clients Qu et al., 2022 (FedSAM, Algorithm 1) and Caldarola et al., 2022. The
    norm is over all parameters; a zero gradient is not perturbed. Each step costs two passes. The second one leaves
    BatchNorm statistics and what the module logs alone, and draws dropout anew.

    Args:
        rho: ρ >= 0, length of ε; 0 is FedAvg. FedGAM's comparison uses 0.1.
        adaptive: ASAM (Kwon et al., 2021): ε = ρ T² g / ‖T g‖ with T = |w| + η, by which the scale of a layer matters
            less. η is 0.01 as in its released code, where biases have T = 1; here they count as weights do. It wants
            a larger ρ: 0.5 there.

    Raises:
        ConfigurationError: rho is out of range.
    """

    settles = frozenset({"local gradient"})

    def __init__(self, rho: float = 0.1, adaptive: bool = False) -> None:
        if not 0 <= rho < float("inf"):
            raise ConfigurationError(f"rho must be at least 0 and finite, got {rho}")
        self.rho, self.adaptive = rho, adaptive

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        if not self.rho:
            return closure

        def perturbed() -> Tensor | None:
            loss = closure()
            if loss is not None:
                scale = run.params.abs() + ETA if self.adaptive else None
                run.grads.copy_(run.gradient_at(run.params + ascent(run.grads, self.rho, scale), closure))
            return loss

        return perturbed
