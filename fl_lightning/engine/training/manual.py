"""The steps of a module with manual optimization, which steps its optimizers itself, perhaps several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.lightning_private import hooked


def watch_steps(run: LocalRun, before: Callable[[Optimizer], None]) -> None:
    """Call a function before each step that the module takes, and count the steps in ``run.global_step``.

    Args:
        run: the client's run, whose ``hooked`` optimizers are those that the module gets, as Lightning wraps them.
        before: called with the optimizer, when the gradients of its step are there.
    """
    inside = False  # a step of a wrapped optimizer, whose closure computes the gradients

    def step(optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
        nonlocal inside

        def evaluate() -> Any:
            result = closure()
            before(optimizer)
            return result

        inside = True
        try:
            return optimizer.step(evaluate, **kwargs)
        finally:
            inside = False

    def before_bare(optimizer: Optimizer, *_: Any) -> None:
        if not inside:
            before(optimizer)

    def count(*_: Any) -> None:
        run.global_step += 1

    for optimizer in run.optimizers:
        optimizer.register_step_pre_hook(before_bare)
        optimizer.register_step_post_hook(count)
    run.hooked = [hooked(optimizer, run.module, step) for optimizer in run.optimizers]


def of_others(
    optimizer: Optimizer, optimizers: Sequence[Optimizer], parameters: Sequence[nn.Parameter]
) -> list[nn.Parameter]:
    """Return the parameters that other optimizers step; none if there is no other optimizer."""
    if len(optimizers) == 1:
        return []
    own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    return [parameter for parameter in parameters if parameter not in own]


@contextmanager
def gradients_kept(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Restore the gradients of parameters after a ``with`` block."""
    before = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
    yield
    for parameter, gradient in zip(parameters, before, strict=True):
        parameter.grad = gradient


@contextmanager
def values_kept(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Restore the values of parameters after a ``with`` block."""
    before = [parameter.detach().clone() for parameter in parameters]
    yield
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
