"""FedRep: a head of each client's own, trained first, on a shared representation."""

from collections.abc import Sequence
from typing import cast

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import ConfigurationError, LocalRun, Server, check_at_least
from fl_lightning.callbacks.personal.local_part import LocalPart


class FedRep(LocalPart):
    """Keeps the head on each client, and trains first the head alone, then the rest alone (Collins et al., 2021).

    The first ``head_epochs`` local epochs train the head on the representation that the client has received, all others
    the representation below the head as it is then (Algorithm 1). What does not train has a zero gradient, and is put
    back after each step, so that weight decay and momentum do not move it.

    Args:
        parts: names of the head's parameters or submodules.
        head_epochs: number of local epochs that train the head; less than ``model.local_epochs``. The released code
            leaves one epoch to the representation on CIFAR-10, and ten to the head.

    Raises:
        ConfigurationError: ``head_epochs`` is less than 1, or leaves no local epoch for the representation; see also
            :class:`LocalPart`.
    """

    def __init__(self, parts: Sequence[str], head_epochs: int = 1) -> None:
        super().__init__(parts)
        check_at_least(1, head_epochs=head_epochs)
        self.head_epochs = head_epochs

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs = pl_module.settings.epochs  # type: ignore[union-attr]  # of the orchestrator
        if epochs is None or epochs <= self.head_epochs:  # type: ignore[operator]
            raise ConfigurationError(
                f"FedRep trains the head for {self.head_epochs} local epochs, and the rest in the others, got "
                f"model.local_epochs {epochs}: set it to {self.head_epochs + 1} or more"
            )

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._head = cast(Server, pl_module).mask_of(self.parts)

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.kept["fedrep"] = run.params.clone()

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        run.grads[self._frozen(run)] = 0

    @override
    def on_after_client_step(self, run: LocalRun) -> None:
        frozen = self._frozen(run)
        run.params[frozen] = run.kept["fedrep"][frozen]
        run.kept["fedrep"][~frozen] = run.params[~frozen]

    def _frozen(self, run: LocalRun) -> Tensor:
        return ~self._head if run.epoch < self.head_epochs else self._head
