"""FedALA: clients that learn, entry by entry, how much of the global model's upper layers to take."""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import (
    Buffers,
    FederatedCallback,
    LocalRun,
    Server,
    check_names,
    check_positive,
    check_within,
    evaluating,
)

WINDOW = 10  # epochs over which the losses of a first learning must lie close together …
SPREAD = 0.1  # … by their standard deviation, as in the released code
EPOCHS = 100  # largest number of epochs of a first learning


def adapt_weights(weights: Tensor, gradient: Tensor, apart: Tensor, lr: float) -> Tensor:
    """Take a step of the weights W of the mixture own + W ∘ (global - own), and bring them back to [0, 1].

    More of the global model would raise the loss in the first entry, lower it in the second, and lower it in the third,
    which has all of it already:

    >>> import torch
    >>> from fl_lightning.callbacks.personal.fedala import adapt_weights
    >>> gradient, apart = torch.tensor([1.0, -0.5, -1.0]), torch.tensor([0.5, 0.5, 1.0])
    >>> adapt_weights(torch.tensor([1.0, 0.0, 1.0]), gradient, apart, lr=1.0)
    tensor([0.5000, 0.2500, 1.0000])

    Args:
        weights: (U,) W.
        gradient: (U,) the loss's gradient at the mixture.
        apart: (U,) global - own.
        lr: learning rate.
    """
    return (weights - lr * gradient * apart).clamp(0, 1)


def has_settled(losses: Sequence[float]) -> bool:
    """Tell whether the losses (…) of a first learning's epochs change little any more, or there are many."""
    recent = torch.tensor(losses[-WINDOW:])
    return len(losses) >= EPOCHS or (len(losses) > WINDOW and float(recent.std(correction=0)) < SPREAD)


class FedALA(FederatedCallback):
    """Starts each client from a mixture of its own and the global model, learned for each entry (Zhang et al., 2023).

    In the upper layers a client starts from v + W ∘ (w - v), where v is its model at the end of its last participation,
    and W in [0, 1] is kept from round to round (Algorithm 1); below them, and in its first participation, it
    starts from the global model w. W starts at 1 and learns on a share of the client's batches, in evaluation mode, by
    W ← clip(W - η ∇f ∘ (w - v)): once through them, at first until the losses of ten epochs have a standard deviation
    below 0.1, and for 100 epochs at most. A client is served by the mixture from which it would train next, for which
    W learns each time. The server averages the clients' models. The released code takes a run of successive examples as
    the share, has no largest number of epochs, and lets clients mix their model in the rounds in which they do not
    train, too.

    Args:
        parts: names of the parameters or submodules of the upper layers, such as the head.
        share: share of the client's batches that W learns on, in (0, 1]; the released code has 0.8.
        lr: η > 0; the released code has 1.

    Raises:
        ConfigurationError: an argument is out of range; no trainable parameter has a name.
    """

    reads = frozenset({"examples"})

    def __init__(self, parts: Sequence[str], share: float = 0.8, lr: float = 1.0) -> None:
        check_names(parts=parts)
        check_within("(0, 1]", share=share)
        check_positive(lr=lr)
        self.parts, self.share, self.lr = parts, share, lr

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._upper = cast(Server, pl_module).mask_of(self.parts)

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        batches = run.batches(self._order(orchestrator, run.client))
        start, weights = self._mixture(orchestrator, run.client, run.anchor, batches)
        run.params.copy_(start)
        if weights is not None:
            self.keep(run, "weights", weights)

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.keep(run, "own", run.params[self._upper])

    @override
    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        batches = orchestrator.data.client_batches(client, self._order(orchestrator, client))
        return self._mixture(orchestrator, client, params, batches)[0], buffers

    def _order(self, orchestrator: Server, client: int) -> torch.Generator:
        """Return what draws the client's share: the same for the model that serves it and for its next start."""
        return orchestrator.generator("fedala", orchestrator.round, client)

    def _mixture(
        self, orchestrator: Server, client: int, params: Tensor, batches: Iterable[Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the mixture (P,), and W (U,) as learned for it; None where there is nothing to learn."""
        received = params[self._upper]
        own = self.recall(f"own/{client}", received)
        apart = received - own
        if not apart.any():
            return params, None
        weights = self.recall(f"weights/{client}", torch.ones_like(own))
        is_first = f"weights/{client}" not in self.state
        known = list(batches)
        known = known[: ceil(self.share * len(known))]
        mixture = params.clone()
        losses: list[float] = []
        with orchestrator.server_side(f"fedala {client}"), evaluating(orchestrator.client):
            while not losses or (is_first and not has_settled(losses)):
                for batch in known:
                    mixture[self._upper] = torch.lerp(own, received, weights)
                    loss, gradient = orchestrator.loss_and_gradient(mixture, batch)
                    weights = adapt_weights(weights, gradient[self._upper], apart, self.lr)
                losses.append(float(loss))
        mixture[self._upper] = torch.lerp(own, received, weights)
        return mixture, weights
