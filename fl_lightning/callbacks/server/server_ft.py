"""Server-FT: the averaged model, fine-tuned on the server's proxy set."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_at_least, check_positive


def check_schedule(epochs: int, lr: float) -> None:
    """Refuse a schedule that :func:`fine_tune` cannot run.

    Raises:
        ConfigurationError: unless epochs >= 1 and 0 < lr < inf.
    """
    check_at_least(1, epochs=epochs)
    check_positive(lr=lr)


def fine_tune(
    orchestrator: Server,
    epochs: int,
    lr: float,
    batches: Callable[[], Iterable[Any]],
    gradient: Callable[[Any], Tensor],
) -> None:
    """Train the global model in place with a fresh Adam, betas (0.5, 0.999) (FedLAW, Appendix D.6).

    Args:
        orchestrator: the orchestrator; its ``params`` (P,) change in place.
        epochs: number of passes over the batches.
        lr: learning rate of Adam.
        batches: function that returns the batches of one pass; called anew for every epoch.
        gradient: function from a batch to the gradient (P,) of its loss at the present parameters.
    """
    model = orchestrator.params
    optimizer = torch.optim.Adam([model], lr=lr, betas=(0.5, 0.999))
    for _ in range(epochs):
        for batch in batches():
            model.grad = gradient(batch)
            optimizer.step()
    model.grad = None


class ServerFT(FederatedCallback):
    """Fine-tunes the new global model on the labelled proxy set (Server-FT in FedLAW; Li et al., 2023).

    The loss is the loss of the module's own ``training_step``, in training mode. The buffers stay the average by n_k;
    published code lets the proxy batches move the BatchNorm statistics.

    Args:
        epochs: passes over the proxy set per round; FedLAW uses 2, since more epochs did harm (Appendix D.6).
        lr: learning rate of Adam. FedLAW states none: the default is ours.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    needs_proxy = True
    settles = frozenset()
    streams = True

    def __init__(self, epochs: int = 2, lr: float = 0.001) -> None:
        check_schedule(epochs, lr)
        self.epochs, self.lr = epochs, lr

    @override
    def refine(self, orchestrator: Server, cohort: Cohort) -> None:

        def gradient(batch: Any) -> Tensor:
            return orchestrator.loss_and_gradient(orchestrator.params, batch)[1]

        with orchestrator.server_side("server_ft"):
            fine_tune(orchestrator, self.epochs, self.lr, lambda: orchestrator.data.proxy_dataloader() or (), gradient)
