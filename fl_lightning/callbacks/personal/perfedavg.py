"""PerFedAvg: a global model from which one gradient step on a client's data leads far."""

from collections.abc import Callable

import torch
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from typing_extensions import override

from fl_lightning import Buffers, FederatedCallback, LocalRun, Server, check_positive
from fl_lightning.callbacks.client.fedsam import following


class PerFedAvg(FederatedCallback):
    """Takes each client's gradient where one step leads, so that one step will do (Fallah et al., 2020, first order).

    Each local step follows the gradient at w - α ∇f(w), both gradients over the step's batch; the paper draws two. A
    client's own model is the global one after one step of size α along the gradient over all of its examples.

    Args:
        alpha: α > 0, size of the step.

    Raises:
        ConfigurationError: ``alpha`` is not positive.
    """

    settles = frozenset({"local gradient"})
    stacks = True

    def __init__(self, alpha: float = 0.01) -> None:
        check_positive(alpha=alpha)
        self.alpha = alpha

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        return following(run, closure, lambda: run.gradient_at(run.params - self.alpha * run.grads, closure))

    @override
    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        total, count = torch.zeros_like(params), 0
        with orchestrator.server_side("perfedavg"):
            for batch in orchestrator.data.client_batches(client, orchestrator.generator("perfedavg", client)):
                size = extract_batch_size(batch)
                total += size * orchestrator.loss_and_gradient(params, batch)[1]
                count += size
        return params - self.alpha * total / max(count, 1), buffers
