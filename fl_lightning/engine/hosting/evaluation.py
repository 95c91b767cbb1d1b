"""SeededEvaluation: random numbers of an evaluation depend on the seed and the round alone."""

from __future__ import annotations

from contextlib import ExitStack

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from fl_lightning.engine.hosting.host import ClientHost
from fl_lightning.seeding import derive, isolated, seed_globals


class SeededEvaluation(Callback):
    """Seeds what a module draws while it validates, tests or predicts (dropout kept on, samples of a latent variable).

    So the metrics of a round do not depend on earlier random numbers, or on a stop and resume. The global generators
    are restored after the evaluation.

    Args:
        orchestrator: the orchestrator, whose seed and round seed the evaluation.
    """

    def __init__(self, orchestrator: ClientHost) -> None:
        self.orchestrator, self._restores = orchestrator, ExitStack()

    def _begin(self, stage: str) -> None:
        device = self.orchestrator.device
        self._restores.enter_context(isolated(device))
        seed_globals(derive(self.orchestrator.seed, stage, self.orchestrator.rounds_done), device)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin("validate")

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin("test")

    @override
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin("predict")

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restores.close()

    on_test_end = on_predict_end = on_validation_end

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restores.close()
