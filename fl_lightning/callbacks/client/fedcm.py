"""FedCM: clients that follow the last round's direction, too."""

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, LocalRun, Server, check_within
from fl_lightning.callbacks.client.fedsam import following


class FedCM(FederatedCallback):
    """Mixes the last round's direction into each client's gradient (Xu et al., 2021).

    A client follows α g + (1 - α) Δ, where Δ is the mean update of the last round, turned round and divided by the
    clients' learning rate and number of steps: a gradient of the cohort. Δ is zero in round 1, and always in a part
    that stays with the clients. Other rules add their terms to the mixture.

    Args:
        alpha: α in (0, 1], share of the client's own gradient; 1 is FedAvg.

    Raises:
        ConfigurationError: ``alpha`` is out of range.
    """

    settles = frozenset({"local gradient"})
    broadcasts = ("direction",)
    reads = frozenset({"steps"})
    streams = True
    stacks = True

    def __init__(self, alpha: float = 0.1) -> None:
        check_within("(0, 1]", alpha=alpha)
        self.alpha = alpha

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        direction = (1 - self.alpha) * self.recall("direction", torch.zeros_like(run.anchor))
        return following(run, closure, lambda: self.alpha * run.grads + direction)

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        reach = float(cohort.weights @ (cohort.learning_rates * cohort.num_steps))
        self.state["direction"] = -cohort.update / reach if reach else torch.zeros_like(update)
        return update
