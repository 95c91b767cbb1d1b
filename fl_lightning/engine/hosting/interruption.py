"""Interruption: leaves the global model and the progress in order when a fit stops inside a round, or raises."""

from __future__ import annotations

from collections.abc import Callable

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from fl_lightning.engine.hosting.host import ClientHost
from fl_lightning.lightning_private import begin_epoch


class Interruption(Callback):
    """Drops a round that a fit leaves half done, and gives the client module back its own methods after an exception.

    A round is left half done by ``max_time``, ``trainer.should_stop``, Ctrl-C, SIGTERM and exceptions. Then the global
    model is the last complete round's, the Trainer counts complete rounds only, and one line names the dropped round.
    The orchestrator adds this callback to its Trainer, because Lightning reports exceptions to callbacks alone.

    Args:
        orchestrator: the orchestrator whose rounds are watched.
        drop_round: drops the current round; returns how many of its clients were done, or None if there is none.
    """

    def __init__(self, orchestrator: ClientHost, drop_round: Callable[[], int | None]) -> None:
        self.orchestrator, self._drop = orchestrator, drop_round

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._drop_round(trainer, speaks=True)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._drop_round(trainer, speaks=not isinstance(exception, Exception))  # errors speak for themselves
        self.orchestrator.release_client()

    def _drop_round(self, trainer: Trainer, speaks: bool) -> None:
        orchestrator = self.orchestrator
        if (done := self._drop()) is None:
            return
        loop = trainer.fit_loop
        epochs, batches = loop.epoch_progress, loop.epoch_loop.batch_progress
        progress = {"epoch_progress": epochs.state_dict(), "epoch_loop.batch_progress": batches.state_dict()}
        begin_epoch(progress, orchestrator.rounds_done)
        epochs.load_state_dict(progress["epoch_progress"])
        batches.load_state_dict(progress["epoch_loop.batch_progress"])
        if speaks:
            where = "" if trainer.world_size == 1 else f" (on the first of {trainer.world_size} devices)"
            rank_zero_warn(
                f"round {orchestrator.round} was stopped when {done} of its "
                f"{len(orchestrator.data.cohort(orchestrator.round))} clients were done{where}, and is dropped; "
                f"rounds done: {orchestrator.rounds_done}"
            )
