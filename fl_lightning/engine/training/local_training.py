"""LocalTraining: trains a client with the module's own steps, hooks and optimizers, called as the Trainer would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import Optimizer

from fl_lightning.engine.hosting.shown_trainer import ClientTrainer
from fl_lightning.engine.module.params import FlatParameters
from fl_lightning.engine.rules.callback import FederatedCallback
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.work import Factors, LocalSettings
from fl_lightning.engine.training.manual import ManualSteps
from fl_lightning.engine.training.optimizers import make_optimizers, scale_rates
from fl_lightning.engine.training.steps import AutomaticSteps, Steps
from fl_lightning.errors import ConfigurationError, values_of

HOOKS = (
    *("on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_zero_grad", "on_before_backward"),
    *("on_after_backward", "on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end", "on_train_end"),
    *("backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "lr_scheduler_step"),
)


class LocalTraining:
    """Trains one client after another: makes its optimizers, and goes through its epochs and batches.

    Args:
        module: the LightningModule that trains, shared by all clients in turn.
        flat: the module's parameters as one vector.
        settings: the local work of every client in a round.
        trainer: the Trainer as the module sees it.
        callbacks: the run's federated callbacks.
    """

    def __init__(
        self,
        module: LightningModule,
        flat: FlatParameters,
        settings: LocalSettings,
        trainer: ClientTrainer,
        callbacks: Sequence[FederatedCallback],
    ) -> None:
        self.module = module
        self.flat = flat
        self.settings = settings
        self.trainer = trainer
        self.hooks = {name: getattr(module, name) for name in HOOKS if is_overridden(name, module, LightningModule)}
        self.automatic = module.automatic_optimization
        kind: type[Steps] = AutomaticSteps if self.automatic else ManualSteps
        self.steps = kind(module, self.hooks, flat, settings, trainer.precision_plugin, callbacks)
        self._first: Sequence[Optimizer] = ()  # those that the module has made when the fit began

    def make_first(self, run: LocalRun) -> list[Optimizer]:
        """Let the module make the optimizers of a client when a fit begins; no client trains with them.

        Raises:
            ConfigurationError: ``configure_optimizers`` returns none, or another number than it may.
        """
        self.trainer.begin(run)
        try:
            with values_of(f"{type(self.module).__name__}.configure_optimizers"):
                self._first, _ = make_optimizers(self.module, self.settings)
        finally:
            self.end(None)
        return self._first

    def start(self, run: LocalRun, factors: Factors = None) -> None:
        """Let the module make the optimizers of a client's run, with the learning rates of this round.

        Args:
            run: the client's run.
            factors: factors on the learning rates, as :meth:`RoundRates.factors` returns them; None for the module's.
        """
        run.optimizers, run.schedules = self.make_optimizers(run, factors)
        self.steps.begin(run)

    def make_optimizers(self, run: LocalRun, factors: Factors) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
        """Make a client's optimizers and schedules; see :meth:`start`.

        Raises:
            ConfigurationError: ``configure_optimizers`` returns an optimizer that it has returned before.
        """
        self.trainer.begin(run)
        made, schedules = make_optimizers(self.module)
        if any(optimizer is other for optimizer in made for other in self._first):
            raise ConfigurationError(
                f"{type(self.module).__name__}.configure_optimizers returns an optimizer that it has returned before, "
                "which would carry momentum from client to client: make a new one at each call"
            )
        if factors is not None:
            scale_rates(made, schedules, factors)
        return made, schedules

    def end(self, run: LocalRun | None) -> None:
        """Show the module the run again, and free a client's optimizers, if the client got that far.

        A step hook of an optimizer refers to the client's run, and the run to the optimizer: the two would wait for
        Python's garbage collector, which counts objects and not the bytes of momentum in them.
        """
        self.trainer.end()
        if run is not None:
            run.optimizers, run.schedules, run.lightning_optimizers = (), (), ()

    def loss_scale(self) -> tuple[float, int] | None:
        """Scale and growth tracker of the client's GradScaler, or None without a scaler."""
        scaler = self.steps.scaler
        state = {} if scaler is None else scaler.state_dict()
        return (state["scale"], state["_growth_tracker"]) if state else None

    def train(self, run: LocalRun, batches: Callable[[int], Iterable[tuple[Any, int]]]) -> None:
        """Train a client.

        Args:
            run: the client's run.
            batches: returns the batches of local epoch 0, 1, …, on the device, with their numbers of examples.

        Raises:
            ConfigurationError: the loss has no gradient, or there are no batches.
        """
        call = self.steps.call
        work = run.work
        left = work.steps  # number of batches to go; None for all of an epoch's
        call("on_train_start")
        while left != 0 and not run.should_stop and (work.epochs is None or run.epoch < work.epochs):
            if work.epochs is not None and run.epoch == work.whole_epochs:
                left = work.last_batches
                if not left:
                    break
            call("on_train_epoch_start")
            taken = self._epoch(run, batches(run.epoch), left)
            call("on_train_epoch_end")
            if not taken:
                raise ConfigurationError(f"client {run.client} has no batches: a client without data must not be drawn")
            left = None if left is None else left - taken
            run.epoch += 1
        call("on_train_end")
        self.flat.take_in()
        self.flat.clear_gradient()

    def _epoch(self, run: LocalRun, batches: Iterable[tuple[Any, int]], limit: int | None) -> int:
        """Train on one epoch's batches, at most ``limit`` of them; return the number of batches."""
        index = -1
        for index, ((batch, size), last) in enumerate(with_last(batches, limit)):
            run.is_last_batch = last
            run.batch_size = size
            leave = self.steps.call("on_train_batch_start", batch, index) == -1
            stepping = last or leave or (index + 1) % self.settings.accumulate == 0
            outputs = None if leave else self.steps.take(run, batch, index, stepping)
            if stepping:
                self._step_schedules(run, "step", index)
            if last or leave:
                self._step_schedules(run, "epoch", run.epoch)
            if leave:
                break
            if "on_train_batch_end" in self.hooks:
                self.hooks["on_train_batch_end"](self._outputs_for_hook(outputs), batch, index)
            if run.should_stop:
                break
        run.batch_size = None
        return index + 1

    def _outputs_for_hook(self, outputs: Any) -> dict[str, Any]:
        """Make the outputs for ``on_train_batch_end``: always a dict, with a loss without autograd graph."""
        if outputs is None:
            return {}
        shown = dict(outputs) if isinstance(outputs, dict) else {"loss": outputs}
        if "loss" in shown:
            shown["loss"] = shown["loss"].detach() / self.settings.accumulate
        return shown

    def _step_schedules(self, run: LocalRun, interval: str, index: int) -> None:
        if not self.automatic:  # then the module steps them itself
            return
        for config in run.schedules:
            if config.interval == interval and (index + 1) % config.frequency == 0:
                if "lr_scheduler_step" in self.hooks:
                    self.steps.call("lr_scheduler_step", config.scheduler, None)
                else:
                    config.scheduler.step()  # type: ignore[call-arg]  # no metric: plateau schedulers are refused


def with_last(batches: Iterable[Any], limit: int | None) -> Iterator[tuple[Any, bool]]:
    """Yield each batch and whether it is the last one; stop after ``limit`` batches."""
    end = object()
    for count, (batch, following) in enumerate(pairwise(chain(batches, [end])), 1):
        last = following is end or count == limit
        yield batch, last
        if last:
            return
