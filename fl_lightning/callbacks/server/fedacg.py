"""FedACG: clients that start where the server's momentum will lead."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Buffers, Cohort, FederatedCallback, LocalRun, Server, check_not_negative, check_within
from fl_lightning.callbacks.client.fedprox import pull


class FedACG(FederatedCallback):
    """Starts clients ahead of the global model, along the server's momentum (Kim et al., 2024).

    Clients start from w + λ m and are pulled back there with (β/2)‖w_k - (w + λ m)‖²; the server's momentum is
    m ← λ m + u, with the mean update u, and its step is m.

    Args:
        lam: λ in [0, 1); with β = 0, 0 is FedAvg.
        beta: β >= 0, weight of the pull. The released code's default is 0.002 in these units.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"step"})
    starts_at_server = True  # so that clients receive one vector, w + λ m
    streams = True
    stacks = True

    def __init__(self, lam: float = 0.85, beta: float = 0.01) -> None:
        check_within("[0, 1)", lam=lam)
        check_not_negative(beta=beta)
        self.lam, self.beta = lam, beta

    @override
    def start(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return params + self.lam * self.recall("momentum", torch.zeros_like(params)), buffers

    @override
    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return params, buffers

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.proximal += self.beta

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        pull(run, self.beta)

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        self.state["momentum"] = self.lam * self.recall("momentum", torch.zeros_like(update)) + update
        return self.state["momentum"]
