"""The steps of a module that has several optimizers, or steps its optimizers itself."""

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

    def wrap(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        closure = args[1] if len(args) > 1 else kwargs.pop("closure", None)
        if closure is None:
            before(optimizer)
            return None

        def evaluate() -> Any:
            result = closure()  # computes the gradients
            before(optimizer)
            return result

        return (optimizer, evaluate, *args[2:]), kwargs

    def count(*_: Any) -> None:
        run.global_step += 1

    for optimizer in run.optimizers:
        optimizer.register_step_pre_hook(wrap)
        optimizer.register_step_post_hook(count)
    run.hooked = [hooked(optimizer, run.module, _step) for optimizer in run.optimizers]


def _step(optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
    return optimizer.step(closure, **kwargs)


@contextmanager
def own_gradients(optimizer: Optimizer, run: LocalRun, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let rules correct the gradients of one optimizer's parameters inside a ``with`` block.

    The gradients of parameters that other optimizers step are restored; those of SparseAdam are made sparse again.

    Args:
        optimizer: the optimizer.
        run: the run of the client, which may have other optimizers.
        parameters: all parameters whose gradients the rules see.
    """
    before = [(each, None if each.grad is None else each.grad.clone()) for each in _others(optimizer, run, parameters)]
    yield
    for parameter, gradient in before:
        parameter.grad = gradient
    if isinstance(optimizer, torch.optim.SparseAdam):
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
            parameter.grad = parameter.grad.to_sparse(1)


@contextmanager
def own_values(optimizer: Optimizer, run: LocalRun, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let rules correct the values of one optimizer's parameters inside a ``with`` block; restore all others."""
    before = [(each, each.detach().clone()) for each in _others(optimizer, run, parameters)]
    with torch.no_grad():
        yield
        for parameter, value in before:
            parameter.copy_(value)


def _others(optimizer: Optimizer, run: LocalRun, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    if len(run.optimizers) == 1:
        return []
    own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    return [parameter for parameter in parameters if parameter not in own]
