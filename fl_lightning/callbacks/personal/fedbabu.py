"""FedBABU: a body that learns under a head that does not, and clients that fine-tune both."""

from collections.abc import Sequence
from typing import cast

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from fl_lightning import LocalRun, Server, check_at_least, check_names
from fl_lightning.callbacks.personal.own_model import OwnModel


class FedBABU(OwnModel):
    """Never trains the global model's head; each client's own model is the whole one, fine-tuned (Oh et al., 2022).

    The head has a zero gradient, and is put back after each step, so that weight decay and momentum do not move it. A
    client's own model comes of its local work done again, from the same global model, with the head, or of ``epochs``
    epochs; the paper fine-tunes once, at the end, five epochs with a rate of its own. Clients train one by one, and
    twice.

    Args:
        parts: names of the head's parameters or submodules.
        epochs: passes over the client's data in fine-tuning, at least 1 (PFLlib: 10); by default the client's work in
            the round.

    Raises:
        ConfigurationError: ``parts`` is empty; no trainable parameter has a name; ``epochs`` is less than 1.
    """

    def __init__(self, parts: Sequence[str], epochs: int | None = None) -> None:
        check_names(parts=parts)
        check_at_least(1, epochs=1 if epochs is None else epochs)
        self.parts, self.epochs = parts, epochs

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._head = cast(Server, pl_module).mask_of(self.parts)

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        run.grads[self._head] = 0

    @override
    def on_after_client_step(self, run: LocalRun) -> None:
        run.params[self._head] = run.anchor[self._head]

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.keep(run, "own", orchestrator.train_again(run, run.anchor, epochs=self.epochs))
