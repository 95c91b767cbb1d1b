"""FedProx: stay near the global model."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_not_negative


def pull(run: LocalRun, weight: float | Tensor, linear: Tensor | None = None) -> None:
    """Add the gradient of ⟨linear, w_local⟩ + (weight/2)‖w_local - w‖² to a client's gradient.

    Args:
        run: the client's run; its ``grads`` (P,) change in place.
        weight: weight of the proximal term; (1,), or (N, 1) for a group of N clients, if each client has its own.
        linear: (P,) linear term, or None for no linear term.
    """
    if isinstance(weight, Tensor):
        run.grads.addcmul_(weight, run.params - run.anchor)
    else:
        run.grads.add_(run.params - run.anchor, alpha=weight)
    if linear is not None:
        run.grads.add_(linear)


class FedProx(FederatedCallback):
    """Adds a pull towards the global model to each client's gradient (Li et al., 2020, Algorithm 2).

    The gradient gains μ (w_local - w) before the local optimizer applies its momentum.

    Args:
        mu: μ >= 0, weight of the term (μ/2)‖w_local - w‖². FedGH's slides use 0.1, FedLAW 0.001.

    Raises:
        ConfigurationError: mu is out of range.
    """

    stacks = True

    def __init__(self, mu: float) -> None:
        check_not_negative(mu=mu)
        self.mu = mu

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.proximal += self.mu  # FedNova's normalizer depends on the weight of proximal terms

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        if self.mu:
            pull(run, self.mu)
