"""Stopping: a run that is asked to stop finishes the client under way, and says how to go on."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)}  # Windows has no SIGUSR1


class Stopping(Callback):
    """Ends a fit in order at Ctrl-C (SIGINT), SIGTERM or SIGUSR1: the run goes on from its last complete round.

    After the first signal, the current client finishes, and its round is dropped; on several devices, which must stop
    together, the current round finishes. A server does not wait for its sites. The same signal a second time ends the
    process at once. Under SLURM with Lightning's automatic requeueing, Lightning handles the signals of that mechanism.

    Attributes:
        stopped_by: number of the signal that has stopped the fit; 0 if none has.
    """

    def __init__(self) -> None:
        self.stopped_by = 0
        self._before: dict[int, Any] = {}

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        requeued = requeues(trainer)
        orchestrator: Any = pl_module

        def stop(number: int, frame: FrameType | None) -> None:
            if self.stopped_by == number:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            self.stopped_by = number
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = 0  # they would keep the fit going
            if trainer.world_size == 1:
                trainer.should_stop = True
            if not trainer.is_global_zero:
                return
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            when = f"after the current {'client' if trainer.world_size == 1 else 'round'}"
            if orchestrator.sites is not None:  # whose answers are not waited for
                when = "without the current round"
            print(f"\nstopping {when}; {name} again stops at once", file=sys.stderr)

        # Python lets only the main thread set handlers: who fits in another thread handles the signals there.
        handled = SIGNALS if threading.current_thread() is threading.main_thread() else set()
        for number in handled:
            if not (requeued and number != signal.SIGINT):
                self._before[number] = signal.signal(number, stop)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size > 1 and trainer.strategy.reduce_boolean_decision(self.stopped_by > 0, all=False):
            trainer.should_stop = True

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the earlier handlers, which are Lightning's; Lightning then restores those before its own."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)


def requeues(trainer: Trainer) -> bool:
    """Tell whether the Trainer answers SLURM's signals by requeueing its job."""
    environment = trainer._accelerator_connector.cluster_environment
    return isinstance(environment, SLURMEnvironment) and environment.auto_requeue
