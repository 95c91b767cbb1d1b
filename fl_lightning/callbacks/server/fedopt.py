"""FedAdagrad, FedYogi and FedAdam: adaptive optimizers on the server."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_positive, check_within


class FedOpt(FederatedCallback, ABC):
    """Base of the adaptive server optimizers (Reddi et al., 2021, Algorithm 2).

    With the round's update u, as left by the rules listed before, m ← β₁m + (1 - β₁)u from m = 0, and
    w ← w + lr · m / (√v + τ), coordinate by coordinate. The second moment v of the updates starts at τ²; there is no
    bias correction. The FedMGC slides print √(v + τ), a misprint, and update v with m² where the paper has u².

    Args:
        lr: learning rate of the server, positive: about the length of a coordinate's step.
        beta1: β₁ in [0, 1).
        tau: τ, positive, added to √v: where √v is much smaller than τ, v no longer adapts the step.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"step"})
    streams = True

    def __init__(self, lr: float = 0.1, beta1: float = 0.9, tau: float = 1e-3) -> None:
        check_positive(lr=lr, tau=tau)
        check_within("[0, 1)", beta1=beta1)
        self.lr, self.beta1, self.tau = lr, beta1, tau

    @abstractmethod
    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the new v (P,), given the last v (P,) and u² (P,)."""

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        m = self.beta1 * self.recall("m", torch.zeros_like(update)) + (1 - self.beta1) * update
        v = self.second_moment(self.recall("v", torch.full_like(update, self.tau**2)), update.square())
        self.state.update(m=m, v=v)
        return self.lr * m / (v.sqrt() + self.tau)


class FedAdagrad(FedOpt):
    """Adapts the server's step in each coordinate to the sum of all squared updates (Reddi et al., 2021, Algorithm 2).

    v ← v + u² only grows, so that steps shrink as training goes on. See :class:`FedOpt` for the arguments.
    """

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Add u² to v."""
        return v + squared


class FedAdam(FedOpt):
    """Adapts the server's step in each coordinate to a moving average of squared updates (Reddi et al., 2021).

    v ← β₂v + (1 - β₂)u² (Algorithm 2), with β₂ = ``beta2`` in [0, 1). See :class:`FedOpt` for the other arguments.
    """

    def __init__(self, lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> None:
        super().__init__(lr, beta1, tau)
        check_within("[0, 1)", beta2=beta2)
        self.beta2 = beta2

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Move v towards u² by the share 1 - β₂ of their difference."""
        return self.beta2 * v + (1 - self.beta2) * squared


class FedYogi(FedAdam):
    """Adapts the server's step as FedAdam does, but forgets large updates more slowly (Reddi et al., 2021).

    v moves towards u² by (1 - β₂)u² (Algorithm 2), however far v is from u². The arguments are those of
    :class:`FedAdam`.
    """

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Move v towards u² by (1 - β₂)u²."""
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)
