"""AutomaticSteps: trains a client on one batch as the Trainer would; and what the steps of all modules share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning.engine.module.failures import guard_hook
from fl_lightning.engine.module.params import FlatParameters
from fl_lightning.engine.rules.callback import FederatedCallback, overrides
from fl_lightning.engine.rules.hooks import checked_hook
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.server import takes_index
from fl_lightning.engine.rules.work import LocalSettings
from fl_lightning.errors import ConfigurationError
from fl_lightning.lightning_private import wrap_optimizer


class Steps(ABC):
    """Trains a client on one batch after another. Hooks are looked up once per fit, so that a step is cheap.

    Args:
        module: the LightningModule that trains, shared by all clients in turn.
        hooks: the training hooks that the module defines, by name.
        flat: the module's parameters as one vector.
        settings: the local work of every client in a round.
        precision: the Trainer's precision plugin.
        callbacks: the run's federated callbacks.

    Attributes:
        scaler: the GradScaler of the client that trains; None without one.
        loss_hooks: the hooks ``loss`` of the callbacks.
        before_step_hooks: the hooks ``on_before_client_step`` of the callbacks.
        after_step_hooks: the hooks ``on_after_client_step`` of the callbacks.
    """

    def __init__(
        self,
        module: LightningModule,
        hooks: dict[str, Any],
        flat: FlatParameters,
        settings: LocalSettings,
        precision: Precision,
        callbacks: Sequence[FederatedCallback],
    ) -> None:
        def hooks_of_rules(name: str) -> list[Callable[..., Any]]:
            return [checked_hook(callback, name) for callback in callbacks if overrides(callback, name)]

        self.module = module
        self.hooks = hooks
        self.flat = flat
        self.settings = settings
        self.takes_index = takes_index(module.training_step)
        self.scaler: Any = None
        self.loss_hooks = hooks_of_rules("loss")
        self.before_step_hooks = hooks_of_rules("on_before_client_step")
        self.after_step_hooks = hooks_of_rules("on_after_client_step")
        self._closing = [callback for callback in callbacks if overrides(callback, "closure")]
        self._run_scaler: Any = getattr(precision, "scaler", None)  # of which every client has a copy
        # The context of plain precision does nothing, but costs time.
        self._forward_context: Callable[[], Any] = precision.train_step_context
        if type(precision) is Precision:
            self._forward_context = nullcontext

    def begin(self, run: LocalRun) -> None:
        """Prepare for the steps of a client, whose optimizers have been made."""
        run.backward = self.backward
        run.optimizers[0].register_step_post_hook(run.count_step)
        if self.after_step_hooks:
            for optimizer in run.optimizers:
                optimizer.register_step_post_hook(partial(self._after_step, run))
        self.scaler = None if self._run_scaler is None else deepcopy(self._run_scaler)

    @abstractmethod
    def take(self, run: LocalRun, batch: Any, index: int, stepping: bool) -> Any:
        """Train on one batch.

        Args:
            run: the client's run.
            batch: the batch, on the device.
            index: the batch's number in its epoch, 0, 1, …
            stepping: whether the optimizer steps after this batch, the last one of those whose gradients add up.

        Returns:
            What ``training_step`` returned.
        """

    def forward(self, batch: Any, index: int) -> Any:
        """Return what the module's ``training_step`` returns for a batch."""
        step = self.module.training_step
        with self._forward_context():
            return step(batch, index) if self.takes_index else step(batch)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Back-propagate a loss and call the module's hooks; the module's ``manual_backward`` calls this method."""
        self.call("on_before_backward", loss)
        loss = loss if self.scaler is None else self.scaler.scale(loss)
        self.hooks.get("backward", torch.Tensor.backward)(loss, *args, **kwargs)
        self.call("on_after_backward")

    def call(self, hook: str, *args: Any) -> Any:
        """Call one of the module's hooks, if the module defines it."""
        return self.hooks[hook](*args) if hook in self.hooks else None

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

    def wrap_closure(self, run: Any, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        """Let the rules wrap the closure that evaluates a batch of a run's client or clients."""
        for rule in self._closing:
            closure = guard_hook(checked_hook(rule, "closure")(run, closure), rule.closure, run)
        return closure

    def before_step(self, run: LocalRun, optimizer: Optimizer) -> None:
        """Let the rules correct the gradients of an optimizer's parameters, and call the module's hook."""
        if self.before_step_hooks:
            with own_gradients(optimizer, run, self.flat.parameters):
                for hook in self.before_step_hooks:
                    hook(run)
        self.call("on_before_optimizer_step", optimizer)

    def _after_step(self, run: LocalRun, optimizer: Optimizer, *_: Any) -> None:
        """Let the rules correct an optimizer's parameters."""
        with own_values(optimizer, run, self.flat.parameters):
            for hook in self.after_step_hooks:
                hook(run)


class AutomaticSteps(Steps):
    """Trains on batches with automatic optimization; the methods are in the order in which a batch meets them.

    Batches whose gradients add up count alike, as with the Trainer, unless the module's ``mean_over`` names the entry
    of what ``training_step`` returns that says how many values the batch's loss is the mean of.
    """

    _values: Tensor | float = 0.0  # number of the values of the batches so far whose gradients add up

    @override
    def take(self, run: LocalRun, batch: Any, index: int, stepping: bool) -> Any:
        outputs: Any = None
        own_loss: Tensor | None = None

        def evaluate() -> Tensor | None:
            nonlocal outputs, own_loss
            outputs, own_loss = self._evaluate(run, batch, index)
            return own_loss

        evaluate_by_rules = self.wrap_closure(run, evaluate)  # rules may evaluate a batch several times

        def closure() -> Tensor | None:
            loss = evaluate_by_rules()
            if loss is None and own_loss is not None:
                names = ", ".join(type(rule).__name__ for rule in self._closing)
                raise ConfigurationError(
                    f"{names}.closure must return a function that returns the loss, got None of it"
                )
            run.add_loss(loss)
            return loss

        if not stepping:
            closure()
            return outputs
        optimizer = run.optimizers[0]
        if "optimizer_step" in self.hooks:  # which calls the optimizer's ``step``, or the closure, or both
            shown = wrap_optimizer(optimizer, self.module, partial(self._step, run))
            self.call("optimizer_step", run.epoch, index, shown, closure)
        else:
            self._step(run, optimizer, closure)
        run.global_step += 1
        return outputs

    def _step(self, run: LocalRun, optimizer: Any, closure: Callable[[], Tensor | None], **kwargs: Any) -> None:
        """Step the optimizer; before, the gradients are scaled back, corrected by the rules, and clipped."""

        def evaluate_and_correct() -> Tensor | None:
            loss = closure()
            if self.scaler is not None and loss is not None:  # without a loss, there is nothing to scale back
                self.scaler.unscale_(optimizer)
            self.before_step(run, optimizer)
            self._clip(optimizer)
            return loss

        if self.scaler is None:
            optimizer.step(evaluate_and_correct, **kwargs)
        elif evaluate_and_correct() is not None:
            self.scaler.step(optimizer, **kwargs)
            self.scaler.update()

    def _evaluate(self, run: LocalRun, batch: Any, index: int) -> tuple[Any, Tensor | None]:
        """Compute the outputs and the loss of a batch, and the loss's gradient."""
        outputs = self.forward(batch, index)
        loss = None if outputs is None else self.loss_of(outputs)
        if loss is not None and self.loss_hooks:
            with run.in_loss():
                for hook in self.loss_hooks:
                    loss = hook(run, batch, outputs, loss)
        if index % self.settings.accumulate == 0:
            self._zero_grad(run, index)
            self._values = 0.0
        if loss is not None:
            self.backward(self._share_of(outputs, loss))
            run.has_gradient = True
        return outputs, loss

    def _share_of(self, outputs: Any, loss: Tensor) -> Tensor:
        """Return a batch's part of the loss of all batches whose gradients add up; shrink the gradient so far to it."""
        accumulate = self.settings.accumulate
        entry = getattr(self.module, "mean_over", None)
        if accumulate == 1 or not isinstance(entry, str):
            return loss / accumulate if accumulate > 1 else loss
        if not isinstance(outputs, dict) or entry not in outputs:
            name = type(self.module).__name__
            raise ConfigurationError(
                f"{name}.mean_over names {entry!r}, but training_step returns no such entry: let it return a dict with "
                f"loss and {entry}, the number of values that the loss is the mean of"
            )
        values = torch.as_tensor(outputs[entry], device=loss.device)
        before, self._values = self._values, self._values + values
        total = torch.clamp(self._values, min=1)
        for parameter in self.flat.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(before / total)
        return loss * (values / total)

    def _zero_grad(self, run: LocalRun, index: int) -> None:
        optimizer = run.optimizers[0]
        self.call("on_before_zero_grad", optimizer)
        if "optimizer_zero_grad" in self.hooks:
            self.call("optimizer_zero_grad", run.epoch, index, optimizer)
        else:
            self.flat.clear_gradient()

    def _clip(self, optimizer: Optimizer) -> None:
        settings = self.settings
        if "configure_gradient_clipping" in self.hooks:
            self.call("configure_gradient_clipping", optimizer, settings.clip, settings.clip_algorithm)
        elif settings.clip is not None:
            parameters = _parameters_of(optimizer)
            if settings.clip_algorithm == "norm":
                torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
            else:
                torch.nn.utils.clip_grad_value_(parameters, settings.clip)


@contextmanager
def own_gradients(optimizer: Optimizer, run: LocalRun, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let rules correct the gradients of one optimizer's parameters inside a ``with`` block.

    The gradients of parameters that other optimizers step are restored; those of SparseAdam are made sparse again.

    Args:
        optimizer: the optimizer.
        run: the run of the client, which may have other optimizers.
        parameters: all parameters whose gradients the rules see.
    """
    others = _others(optimizer, run, parameters)
    gradients = [None if other.grad is None else other.grad.clone() for other in others]
    yield
    for other, gradient in zip(others, gradients, strict=True):
        other.grad = gradient
    if isinstance(optimizer, torch.optim.SparseAdam):
        for parameter in _parameters_of(optimizer):
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to_sparse(1)


@contextmanager
def own_values(optimizer: Optimizer, run: LocalRun, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let rules correct the values of one optimizer's parameters inside a ``with`` block; restore all others."""
    values = [(other, other.detach().clone()) for other in _others(optimizer, run, parameters)]
    with torch.no_grad():
        yield
        for other, value in values:
            other.copy_(value)


def _others(optimizer: Optimizer, run: LocalRun, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters that other optimizers of a client step."""
    if len(run.optimizers) == 1:
        return []
    own = set(_parameters_of(optimizer))
    return [parameter for parameter in parameters if parameter not in own]


def _parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
