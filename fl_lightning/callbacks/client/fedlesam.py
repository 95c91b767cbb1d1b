"""FedLESAM: sharpness-aware training along what the global model has moved since a client last saw it."""

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_not_negative
from fl_lightning.callbacks.client.fedsam import ascent, following


class FedLESAM(FederatedCallback):
    """Takes each client's gradient uphill, against the last global steps, for flat minima (Fan et al., 2024).

    Algorithm 1. The gradient is that at w + ρ (w_old - w_new) / ‖w_old - w_new‖. w_new is the model that the client
    starts from, and w_old the one of its last participation: their difference stands for the global gradient, along
    which FedSAM would take a pass to go uphill. In its first participation, a client takes the gradient at w. The
    released code uses the server's last step for all clients, and perturbs each tensor by one number. Each step takes
    two passes, where the paper takes one: another one at w gives the loss that is logged.

    Args:
        rho: ρ >= 0, length of the perturbation; 0 is FedAvg.

    Raises:
        ConfigurationError: ``rho`` is negative.
    """

    settles = frozenset({"local gradient"})
    stacks = True

    def __init__(self, rho: float = 0.1) -> None:
        check_not_negative(rho=rho)
        self.rho = rho

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        moved = self.recall(f"model/{run.client}", run.anchor) - run.anchor
        run.kept["ahead"] = ascent(moved, self.rho)
        self.keep(run, "model", run.anchor)

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        return following(run, closure, lambda: run.gradient_at(torch.add(run.params, run.kept["ahead"]), closure))
