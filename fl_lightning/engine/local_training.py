"""LocalTraining: trains a client with the module's own steps, hooks and optimizers, called as the Trainer would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.engine.callback import FederatedCallback, overrides
from fl_lightning.engine.local_run import LocalRun
from fl_lightning.engine.local_work import LocalSettings
from fl_lightning.engine.params import FlatParameters
from fl_lightning.errors import ConfigurationError

HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
    "backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "configure_gradient_clipping",
    "lr_scheduler_step",
)


class LocalTraining:
    """Trains one client after another. Hooks and settings are looked up once per fit, so that a local step is cheap.

    Args:
        module: the LightningModule that trains, shared by all clients in turn.
        flat: the module's parameters as one vector.
        settings: the local work of every client in a round.
        precision: the Trainer's precision plugin.
        callbacks: the run's federated callbacks.
    """

    def __init__(
        self,
        module: LightningModule,
        flat: FlatParameters,
        settings: LocalSettings,
        precision: Precision,
        callbacks: Sequence[FederatedCallback],
    ) -> None:
        self.module, self.flat, self.settings = module, flat, settings
        self.hooks = {name: getattr(module, name) for name in HOOKS if is_overridden(name, module, LightningModule)}
        plain = type(precision) is Precision  # plain precision: its context does nothing, but costs time
        self.forward_context: Callable[[], AbstractContextManager[None]]
        self.forward_context = nullcontext if plain else precision.train_step_context
        self.scaler: Any = getattr(precision, "scaler", None)
        self.takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        self.automatic = module.automatic_optimization
        self.losses = [c.loss for c in callbacks if overrides(c, "loss")]
        self.closures = [c.closure for c in callbacks if overrides(c, "closure")]
        self.before_step = [c.on_before_client_step for c in callbacks if overrides(c, "on_before_client_step")]

    def start(self, client: int, round: int, num_samples: int, anchor: Tensor) -> LocalRun:
        """Start a client's run in a round, with new optimizers and the learning rates of this round."""
        factor = self.settings.lr_decay ** (round - 1)
        run = LocalRun(self.module, self.flat, client, round, num_samples, anchor, factor)
        for optimizer in () if self.automatic else run.optimizers:
            optimizer.register_step_pre_hook(lambda optimizer, *_: self._before_step(run, optimizer))
        return run

    def train(
        self,
        run: LocalRun,
        batches: Callable[[int], Iterable[Any]],
        num_batches: int,
        epochs: float | None,
        steps: int | None,
    ) -> None:
        """Train a client for a number of epochs or steps.

        Args:
            run: the client's run.
            batches: returns the batches of local epoch 0, 1, …, on the device.
            num_batches: number of batches in a whole epoch, used for a fraction of an epoch.
            epochs: passes over the batches, or None if ``steps`` is given; a fraction of a pass is rounded to the
                nearest whole number of batches, at least one in all.
            steps: number of batches, or None if ``epochs`` is given.

        Raises:
            ConfigurationError: the loss has no gradient, or there are no batches.
        """
        epoch, left = 0, steps
        self._call("on_train_start")
        while left != 0 and (epochs is None or epoch < epochs):
            if epochs is not None and epochs < epoch + 1:
                left = max(round((epochs - epoch) * num_batches), 0 if epoch else 1)  # at least one batch in all
                if not left:
                    break
            self._call("on_train_epoch_start")
            taken = self._epoch(run, batches(epoch), epoch, left)
            self._call("on_train_epoch_end")
            if not taken:
                raise ConfigurationError(f"client {run.client} has no batches: a client without data must not be drawn")
            left = None if left is None else left - taken
            epoch += 1
        self._call("on_train_end")
        self.flat.clear_gradient()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Back-propagate a loss and call the module's hooks; the module's ``manual_backward`` calls this method."""
        self._call("on_before_backward", loss)
        loss = loss if self.scaler is None else self.scaler.scale(loss)
        self.hooks.get("backward", torch.Tensor.backward)(loss, *args, **kwargs)
        self._call("on_after_backward")

    def _call(self, hook: str, *args: Any) -> Any:
        return self.hooks[hook](*args) if hook in self.hooks else None

    def _epoch(self, run: LocalRun, batches: Iterable[Any], epoch: int, limit: int | None) -> int:
        """Train on one epoch's batches, at most ``limit`` of them; return the number of batches."""
        index = -1
        for index, (batch, last) in enumerate(with_last(batches, limit)):
            leave = self._call("on_train_batch_start", batch, index) == -1
            stepping = last or leave or (index + 1) % self.settings.accumulate == 0
            outputs = None if leave else self._batch(run, batch, index, stepping)
            if stepping:
                self._step_schedules(run, "step", index)
            if last or leave:
                self._step_schedules(run, "epoch", epoch)
            if leave:
                break
            if "on_train_batch_end" in self.hooks:
                self._call("on_train_batch_end", self._shown(outputs), batch, index)
        return index + 1

    def _batch(self, run: LocalRun, batch: Any, index: int, stepping: bool) -> Any:
        """Train on one batch, with an optimizer step if ``stepping``; return the outputs of ``training_step``."""
        outputs = None
        if not self.automatic:
            outputs = self._forward(batch, index)
            _add_loss(run, outputs.get("loss") if isinstance(outputs, dict) else outputs)
            return outputs
        accumulate = self.settings.accumulate

        def evaluate() -> Tensor | None:
            nonlocal outputs
            outputs = self._forward(batch, index)
            loss = None if outputs is None else self._loss_of(outputs)
            if loss is not None:
                for hook in self.losses:
                    loss = hook(run, batch, outputs, loss)
            if index % accumulate == 0:
                self._zero_grad(run, index)
            if loss is not None:
                self.backward(loss / accumulate if accumulate > 1 else loss)
                run.has_gradient = True
            return loss

        for wrap in self.closures:
            evaluate = wrap(run, evaluate)
        if stepping:
            self._step(run, evaluate, index)
        else:
            _add_loss(run, evaluate())
        return outputs

    def _forward(self, batch: Any, index: int) -> Any:
        step = self.module.training_step
        with self.forward_context():
            return step(batch, index) if self.takes_index else step(batch)

    def _loss_of(self, outputs: Any) -> Tensor:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            name = type(self.module).__name__
            got = "a loss without a gradient" if isinstance(loss, Tensor) else f"{type(loss).__name__}"
            raise ConfigurationError(
                f"{name}.training_step must return a loss that depends on the parameters (a tensor, or a dict with "
                f"'loss'), got {got}: is it detached, or computed under no_grad?"
            )
        return loss

    def _shown(self, outputs: Any) -> dict[str, Any]:
        """Make the outputs for ``on_train_batch_end``: always a dict, with a loss without graph."""
        shown = {} if outputs is None else dict(outputs) if isinstance(outputs, dict) else {"loss": outputs}
        if "loss" in shown:
            shown["loss"] = shown["loss"].detach() / self.settings.accumulate
        return shown

    def _zero_grad(self, run: LocalRun, index: int) -> None:
        optimizer = run.optimizers[0]
        self._call("on_before_zero_grad", optimizer)
        if "optimizer_zero_grad" in self.hooks:
            self.hooks["optimizer_zero_grad"](run.round - 1, index, optimizer)
        else:
            self.flat.clear_gradient()

    def _step(self, run: LocalRun, evaluate: Callable[[], Tensor | None], index: int) -> None:
        optimizer, scaler = run.optimizers[0], self.scaler

        def closure() -> Tensor | None:
            loss = evaluate()
            _add_loss(run, loss)
            if scaler is not None:
                scaler.unscale_(optimizer)
            self._before_step(run, optimizer)
            self._clip(optimizer)
            return loss

        if scaler is not None:
            closure()
            scaler.step(optimizer)
            scaler.update()
        elif "optimizer_step" in self.hooks:
            self.hooks["optimizer_step"](run.round - 1, index, optimizer, closure)
        else:
            optimizer.step(closure)  # type: ignore[arg-type]  # the closure may return None, as a training_step may

    def _before_step(self, run: LocalRun, optimizer: Optimizer) -> None:
        """Let the rules correct the gradients of this optimizer's parameters; all other gradients are restored."""
        others = {}
        if self.before_step and len(run.optimizers) > 1:
            mine = {p for group in optimizer.param_groups for p in group["params"]}
            others = {p: None if p.grad is None else p.grad.clone() for p in self.flat.parameters if p not in mine}
        for hook in self.before_step:
            hook(run)
        for parameter, gradient in others.items():
            parameter.grad = gradient
        self._call("on_before_optimizer_step", optimizer)

    def _clip(self, optimizer: Optimizer) -> None:
        settings = self.settings
        if "configure_gradient_clipping" in self.hooks:
            self.hooks["configure_gradient_clipping"](optimizer, settings.clip, settings.clip_algorithm)
        elif settings.clip is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            by_norm = settings.clip_algorithm == "norm"
            clip = torch.nn.utils.clip_grad_norm_ if by_norm else torch.nn.utils.clip_grad_value_
            clip(parameters, settings.clip)

    def _step_schedules(self, run: LocalRun, interval: str, index: int) -> None:
        for config in run.schedules if self.automatic else ():
            if config.interval == interval and (index + 1) % config.frequency == 0:
                if "lr_scheduler_step" in self.hooks:
                    self.hooks["lr_scheduler_step"](config.scheduler, None)
                else:
                    config.scheduler.step()  # type: ignore[call-arg]  # no metric: plateau schedulers are refused


def _add_loss(run: LocalRun, loss: Tensor | None) -> None:
    if loss is not None:
        run.losses.append(loss.detach())


def with_last(batches: Iterable[Any], limit: int | None) -> Iterator[tuple[Any, bool]]:
    """Yield each batch and whether it is the last one; stop after ``limit`` batches."""
    waiting: list[Any] = []
    for count, batch in enumerate(batches):
        if count == limit:
            break
        if waiting:
            yield waiting.pop(), False
        waiting.append(batch)
    if waiting:
        yield waiting.pop(), True
