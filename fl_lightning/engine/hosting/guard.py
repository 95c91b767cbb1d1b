"""Guard: keeps evaluations apart from training, and a fit in order that stops inside a round, or raises."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from fl_lightning.engine.hosting.host import ClientHost
from fl_lightning.lightning_private import begin_epoch
from fl_lightning.seeding import derive, isolated, seed_globals


class Guard(Callback):
    """Seeds evaluations, drops a round that a fit leaves half done, and gives the client module back after an error.

    What a module draws while it validates, tests or predicts (dropout kept on, samples of a latent variable) depends on
    the seed and the round alone: not on earlier random numbers, or on a stop and resume. The global generators are
    restored after the evaluation.

    A round is left half done by ``max_time``, ``trainer.should_stop``, Ctrl-C, SIGTERM and exceptions. Then the global
    model is the last complete round's, the Trainer counts complete rounds only, and one line names the dropped round.
    The orchestrator adds this callback to its Trainer, because Lightning reports exceptions to callbacks alone.

    Args:
        orchestrator: the orchestrator whose evaluations and rounds are guarded.
        drop_round: drops the current round; returns how many of its clients were done, or None if there is none.
    """

    def __init__(self, orchestrator: ClientHost, drop_round: Callable[[], int | None]) -> None:
        self.orchestrator = orchestrator
        self._drop = drop_round
        self._restores = ExitStack()

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stage = trainer.state.stage
        assert stage is not None
        purpose = "validate" if trainer.sanity_checking else stage.value  # else "validate", "test" or "predict"
        self._restores.enter_context(isolated(pl_module.device))
        seed_globals(derive(self.orchestrator.seed, purpose, self.orchestrator.rounds_done), pl_module.device)

    on_test_start = on_predict_start = on_validation_start

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restores.close()

    on_test_end = on_predict_end = on_validation_end

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._drop_round(trainer, speaks=True)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restores.close()
        self._drop_round(trainer, speaks=not isinstance(exception, Exception))  # errors speak for themselves
        self.orchestrator.release_client()

    def _drop_round(self, trainer: Trainer, speaks: bool) -> None:
        orchestrator = self.orchestrator
        done = self._drop()
        if done is None:
            return
        epochs = trainer.fit_loop.epoch_progress
        batches = trainer.fit_loop.epoch_loop.batch_progress
        progress = {"epoch_progress": epochs.state_dict(), "epoch_loop.batch_progress": batches.state_dict()}
        begin_epoch(progress, orchestrator.rounds_done)
        epochs.load_state_dict(progress["epoch_progress"])
        batches.load_state_dict(progress["epoch_loop.batch_progress"])
        if speaks:
            clients = orchestrator.data.cohort(orchestrator.round)
            where = "" if trainer.world_size == 1 else f" (on the first of {trainer.world_size} devices)"
            rank_zero_warn(
                f"round {orchestrator.round} was stopped when {done} of its {len(clients)} clients were done{where}, "
                f"and is dropped; rounds done: {orchestrator.rounds_done}"
            )
