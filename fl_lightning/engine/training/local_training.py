"""LocalTraining: trains a client with the module's own steps, hooks and optimizers, called as the Trainer would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.engine.hosting.shown_trainer import ClientTrainer
from fl_lightning.engine.module.failures import guarded
from fl_lightning.engine.module.params import FlatParameters
from fl_lightning.engine.rules.callback import FederatedCallback, overrides
from fl_lightning.engine.rules.hooks import checked
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.server import takes_index
from fl_lightning.engine.rules.work import Factors, LocalSettings
from fl_lightning.engine.training.manual import own_gradients, own_values, watch_steps
from fl_lightning.engine.training.optimizers import make_optimizers, scale_rates
from fl_lightning.errors import ConfigurationError, values_of
from fl_lightning.lightning_private import hooked

HOOKS = (
    *("on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_zero_grad", "on_before_backward"),
    *("on_after_backward", "on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end", "on_train_end"),
    *("backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "lr_scheduler_step"),
)


class LocalTraining:
    """Trains one client after another. Hooks and settings are looked up once per fit, so that a local step is cheap.

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
        self.module, self.flat, self.settings, self.trainer = module, flat, settings, trainer
        self.hooks = {name: getattr(module, name) for name in HOOKS if is_overridden(name, module, LightningModule)}
        precision = trainer.precision_plugin
        plain = type(precision) is Precision  # plain precision: its context does nothing, but costs time
        self.forward_context: Callable[[], Any] = nullcontext if plain else precision.train_step_context
        self.shared_scaler: Any = getattr(precision, "scaler", None)
        self.scaler: Any = None  # the client's own
        self.takes_index = takes_index(module.training_step)
        self.automatic = module.automatic_optimization

        def defined(hook: str) -> list[Callable[..., Any]]:
            return [checked(callback, hook) for callback in callbacks if overrides(callback, hook)]

        self.losses, self.before_step = defined("loss"), defined("on_before_client_step")
        self.after_step = defined("on_after_client_step")
        self.closing = [callback for callback in callbacks if overrides(callback, "closure")]
        self._first: Sequence[Optimizer] = ()  # those that the module has made when the fit began

    def make_first(self, run: LocalRun) -> list[Optimizer]:
        """Let the module make the optimizers of a client when a fit begins; no client trains with them.

        Raises:
            ConfigurationError: ``configure_optimizers`` returns none, or another number than it may.
        """
        self.trainer.begin(run)
        try:
            with values_of(f"{type(self.module).__name__}.configure_optimizers"):
                self._first, _ = make_optimizers(self.module)
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
        run.backward = self.backward
        run.optimizers[0].register_step_post_hook(run.count_step)
        if self.after_step:
            for optimizer in run.optimizers:
                optimizer.register_step_post_hook(partial(self._after_step, run))
        self.scaler = None if self.shared_scaler is None else deepcopy(self.shared_scaler)
        if not self.automatic:
            watch_steps(run, partial(self._before_step, run))

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
            run.optimizers, run.schedules, run.hooked = (), (), ()

    def loss_scale(self) -> tuple[float, int] | None:
        """Scale and growth tracker of the client's GradScaler, or None without a scaler."""
        state = self.scaler.state_dict() if self.scaler is not None else {}
        return (state["scale"], state["_growth_tracker"]) if state else None

    def train(self, run: LocalRun, batches: Callable[[int], Iterable[tuple[Any, int]]]) -> None:
        """Train a client.

        Args:
            run: the client's run.
            batches: returns the batches of local epoch 0, 1, …, on the device, with their numbers of examples.

        Raises:
            ConfigurationError: the loss has no gradient, or there are no batches.
        """
        work, left = run.work, run.work.steps
        self._call("on_train_start")
        while left != 0 and not run.should_stop and (work.epochs is None or run.epoch < work.epochs):
            if work.epochs is not None and run.epoch == work.whole_epochs:
                left = work.last_batches
                if not left:
                    break
            self._call("on_train_epoch_start")
            taken = self._epoch(run, batches(run.epoch), left)
            self._call("on_train_epoch_end")
            if not taken:
                raise ConfigurationError(f"client {run.client} has no batches: a client without data must not be drawn")
            left = None if left is None else left - taken
            run.epoch += 1
        self._call("on_train_end")
        self.flat.take_in()
        self.flat.clear_gradient()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Back-propagate a loss and call the module's hooks; the module's ``manual_backward`` calls this method."""
        self._call("on_before_backward", loss)
        loss = loss if self.scaler is None else self.scaler.scale(loss)
        self.hooks.get("backward", torch.Tensor.backward)(loss, *args, **kwargs)
        self._call("on_after_backward")

    def _call(self, hook: str, *args: Any) -> Any:
        return self.hooks[hook](*args) if hook in self.hooks else None

    def _epoch(self, run: LocalRun, batches: Iterable[tuple[Any, int]], limit: int | None) -> int:
        """Train on one epoch's batches, at most ``limit`` of them; return the number of batches."""
        index = -1
        for index, ((batch, size), last) in enumerate(with_last(batches, limit)):
            run.is_last_batch, run.batch_size = last, size
            leave = self._call("on_train_batch_start", batch, index) == -1
            stepping = last or leave or (index + 1) % self.settings.accumulate == 0
            outputs = None if leave else self._batch(run, batch, index, stepping)
            if stepping:
                self._step_schedules(run, "step", index)
            if last or leave:
                self._step_schedules(run, "epoch", run.epoch)
            if leave:
                break
            if "on_train_batch_end" in self.hooks:
                self._call("on_train_batch_end", self._shown(outputs), batch, index)
            if run.should_stop:
                break
        run.batch_size = None
        return index + 1

    def _batch(self, run: LocalRun, batch: Any, index: int, stepping: bool) -> Any:
        """Train on one batch, with an optimizer step if ``stepping``; return the outputs of ``training_step``."""
        outputs = given = None
        if not self.automatic:
            outputs = self._forward(batch, index)
            run.add_loss(outputs.get("loss") if isinstance(outputs, dict) else outputs)
            return outputs

        def evaluate() -> Tensor | None:
            nonlocal outputs, given
            outputs, given = self._evaluate(run, batch, index)
            return given

        wrapped = self.wrapped(run, evaluate)

        def closure() -> Tensor | None:
            loss = wrapped()
            if loss is None and given is not None:
                names = ", ".join(type(rule).__name__ for rule in self.closing)
                raise ConfigurationError(
                    f"{names}.closure must return a function that returns the loss, got None of it"
                )
            run.add_loss(loss)
            return loss

        if stepping:
            self._step(run, closure, index)
        else:
            closure()
        return outputs

    def wrapped(self, run: Any, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        """Let the rules wrap the closure that evaluates a batch of a run's client or clients."""
        for rule in self.closing:
            closure = guarded(checked(rule, "closure")(run, closure), rule.closure, run)
        return closure

    def _evaluate(self, run: LocalRun, batch: Any, index: int) -> tuple[Any, Tensor | None]:
        """Compute the outputs and the loss of a batch, and the loss's gradient."""
        accumulate = self.settings.accumulate
        outputs = self._forward(batch, index)
        loss = None if outputs is None else self.loss_of(outputs)
        if loss is not None and self.losses:
            with run.in_loss():
                for hook in self.losses:
                    loss = hook(run, batch, outputs, loss)
        if index % accumulate == 0:
            self._zero_grad(run, index)
        if loss is not None:
            self.backward(loss / accumulate if accumulate > 1 else loss)
            run.has_gradient = True
        return outputs, loss

    def _forward(self, batch: Any, index: int) -> Any:
        step = self.module.training_step
        with self.forward_context():
            return step(batch, index) if self.takes_index else step(batch)

    def loss_of(self, outputs: Any, shows_gradient: bool = True) -> Tensor:
        """Return the loss in what ``training_step`` returned.

        Args:
            outputs: the return value of ``training_step``.
            shows_gradient: whether a loss with a gradient says so; a vmap inside of the gradient hides it.

        Raises:
            ConfigurationError: there is no loss, or the loss has no gradient.
        """
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if not isinstance(loss, Tensor) or (shows_gradient and not loss.requires_grad):
            name = type(self.module).__name__
            got = "a loss without a gradient" if isinstance(loss, Tensor) else f"{type(loss).__name__}"
            raise ConfigurationError(
                f"{name}.training_step must return a loss that depends on the parameters (a tensor, or a dict with "
                f"'loss'), got {got}: is it detached, or computed under no_grad?"
            )
        return loss

    def _shown(self, outputs: Any) -> dict[str, Any]:
        """Make the outputs for ``on_train_batch_end``: always a dict, with a loss without autograd graph."""
        shown = {} if outputs is None else dict(outputs) if isinstance(outputs, dict) else {"loss": outputs}
        if "loss" in shown:
            shown["loss"] = shown["loss"].detach() / self.settings.accumulate
        return shown

    def _zero_grad(self, run: LocalRun, index: int) -> None:
        optimizer = run.optimizers[0]
        self._call("on_before_zero_grad", optimizer)
        if "optimizer_zero_grad" in self.hooks:
            self._call("optimizer_zero_grad", run.epoch, index, optimizer)
        else:
            self.flat.clear_gradient()

    def _step(self, run: LocalRun, evaluate: Callable[[], Tensor | None], index: int) -> None:
        """Let the client's optimizer step, or the module's ``optimizer_step``, with the closure of a batch."""
        optimizer, step = run.optimizers[0], partial(self._take_step, run)
        if "optimizer_step" in self.hooks:
            self._call("optimizer_step", run.epoch, index, hooked(optimizer, self.module, step), evaluate)
        else:
            step(optimizer, evaluate)
        run.global_step += 1

    def _take_step(self, run: LocalRun, optimizer: Any, evaluate: Callable[[], Tensor | None], **kwargs: Any) -> None:
        """Step an optimizer; the gradients of a batch are scaled back, corrected by the rules, and clipped before."""

        def closure() -> Tensor | None:
            loss = evaluate()
            if self.scaler is not None and loss is not None:  # without a loss, there is nothing to scale back
                self.scaler.unscale_(optimizer)
            self._before_step(run, optimizer)
            self._clip(optimizer)
            return loss

        if self.scaler is None:
            optimizer.step(closure, **kwargs)
        elif closure() is not None:
            self.scaler.step(optimizer, **kwargs)
            self.scaler.update()

    def _before_step(self, run: LocalRun, optimizer: Optimizer) -> None:
        """Let the rules correct the gradients of this optimizer's parameters, and call the module's hook."""
        if self.before_step:
            with own_gradients(optimizer, run, self.flat.parameters):
                for hook in self.before_step:
                    hook(run)
        self._call("on_before_optimizer_step", optimizer)

    def _after_step(self, run: LocalRun, optimizer: Optimizer, *_: Any) -> None:
        """Let the rules correct this optimizer's parameters."""
        with own_values(optimizer, run, self.flat.parameters):
            for hook in self.after_step:
                hook(run)

    def _clip(self, optimizer: Optimizer) -> None:
        settings = self.settings
        if "configure_gradient_clipping" in self.hooks:
            self._call("configure_gradient_clipping", optimizer, settings.clip, settings.clip_algorithm)
        elif settings.clip is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            by_norm = settings.clip_algorithm == "norm"
            clip = torch.nn.utils.clip_grad_norm_ if by_norm else torch.nn.utils.clip_grad_value_
            clip(parameters, settings.clip)

    def _step_schedules(self, run: LocalRun, interval: str, index: int) -> None:
        for config in run.schedules if self.automatic else ():
            if config.interval == interval and (index + 1) % config.frequency == 0:
                if "lr_scheduler_step" in self.hooks:
                    self._call("lr_scheduler_step", config.scheduler, None)
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
