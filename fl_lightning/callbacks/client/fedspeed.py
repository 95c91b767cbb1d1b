"""FedSpeed: a proximal term that is corrected by what it has held back, and gradients from uphill."""

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_not_negative, check_positive, check_within
from fl_lightning.callbacks.client.fedprox import pull
from fl_lightning.callbacks.client.fedsam import ahead, following


class FedSpeed(FederatedCallback):
    """Adds a corrected proximal term to each client's gradient, taken in part uphill (Sun et al., 2023, FedSpeed).

    Algorithm 1. A step follows (1 - α) g(w_k) + α g(w_k + ρ g / ‖g‖) + (s_k + w_k - w) / λ, where s_k (P,) sums what
    client k's model has moved from the global model w in all its rounds: -s_k / λ is the paper's prox-correction. After
    training, s_k gains w_k - w, and the client sends w_k + s_k in place of w_k. The paper's average is uniform: set
    ``FedAvg(weighting: uniform)``. The released code has α = 1, and adds the mean of s_k over all clients to the
    cohort's mean of w_k, as :class:`FedDyn` does: its form is the chain of ``FedDyn`` and :class:`FedSAM`, and the same
    as this rule where all clients take part in each round. Where few take part, take the chain: a cohort's mean of s_k
    is far from that of all clients. With 10 of 100 clients a round, this rule ends 20 points of accuracy below FedAvg,
    and the chain 2.7 above (the benchmark's problem few-participants).

    Args:
        penalty: 1/λ > 0, weight of the proximal term; the released code has 0.1.
        rho: ρ >= 0, length of the ascent step; the released code has 0.1.
        alpha: α in [0, 1], share of the gradient uphill.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"local gradient"})
    stacks = True

    def __init__(self, penalty: float = 0.1, rho: float = 0.1, alpha: float = 1.0) -> None:
        check_positive(penalty=penalty)
        check_not_negative(rho=rho)
        check_within("[0, 1]", alpha=alpha)
        self.penalty, self.rho, self.alpha = penalty, rho, alpha

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.proximal += self.penalty
        run.kept["fedspeed"] = self.penalty * self._moved(run)

    def _moved(self, run: LocalRun) -> Tensor:
        """Return s_k (P,) as it was after the client's last participation."""
        return self.recall(f"moved/{run.client}", torch.zeros_like(run.anchor))

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        def partly_uphill() -> Tensor:
            here = run.grads
            uphill = run.gradient_at(ahead(run.params, here, self.rho), closure)
            return torch.lerp(here, uphill, self.alpha)

        return following(run, closure, partly_uphill) if self.rho * self.alpha else closure

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        pull(run, self.penalty, run.kept["fedspeed"])

    @override
    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        moved = self._moved(run) + (run.params - run.anchor)
        self.keep(run, "moved", moved)
        return update + moved
