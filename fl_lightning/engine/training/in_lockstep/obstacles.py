"""What acts inside a local step on a single client, and so forbids that clients train at once.

One table in four parts, each read as soon as its answers are known: when a fit begins, when a group has its optimizer,
at each step, and when a group has trained. What no row sees, a :class:`Trial` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.engine.rules.callback import serves_stacks
from fl_lightning.engine.rules.declared import declares
from fl_lightning.engine.training.in_lockstep.stacked_optimizer import ELEMENTWISE
from fl_lightning.engine.training.one_by_one import OneByOne

SURE = 0.5  # a relative difference up to this power of the dtype's rounding is rounding

Table = Iterator[tuple[object, str]]  # something that is true where clients cannot train at once, and why they cannot


class Obstacle(RuntimeError):  # noqa: N818  # not an error of the run: clients then train one after another
    """Says why clients cannot train at once."""


def reason_in(table: Table) -> str | None:
    """Return the reason in the first row that is true; None if clients can train at once."""
    for is_true, reason in table:
        if is_true:
            return reason
    return None


def clear(table: Table) -> None:
    """Raise an :class:`Obstacle` for the first row that is true."""
    reason = reason_in(table)
    if reason is not None:
        raise Obstacle(reason)


def of_fit(alone: OneByOne) -> Table:
    """Judge the settings, the module, the rules and the data, when a fit begins."""
    local = alone.local
    datamodule = alone.data.datamodule
    trainer = alone.orchestrator.trainer
    name = type(local.module).__name__
    single = [type(callback).__name__ for callback in alone.hooks.callbacks if not serves_stacks(callback)]
    yield not local.automatic, f"{name} optimizes manually"
    yield local.hooks, f"{name} defines {', '.join(local.hooks)}"
    yield type(trainer.precision_plugin) is not Precision, f"precision is {trainer.precision}"
    yield local.settings.accumulate > 1, "accumulate_grad_batches is above 1"
    own_batches = not declares(datamodule, "in_rows", ("client_batches",))
    yield own_batches, f"{type(datamodule).__name__} defines client_batches"
    yield single, f"{''.join(single[:1])} has hooks for single clients"


def of_optimizer(module: LightningModule, optimizer: Optimizer, schedules: Sequence[Any], asked: set[str]) -> Table:
    """Judge a client's new optimizer, which is to step the rows of a stack, and the hooks around its steps.

    Hooks of parameters and layers see the gradients of one client, and hooks of an optimizer the optimizer of one.

    Args:
        module: the module.
        optimizer: the optimizer.
        schedules: the schedules of its learning rates.
        asked: attributes of the Trainer that the module asked for to make it, which may differ from client to client.
    """
    name = type(module).__name__
    yield asked, f"{name}.configure_optimizers asks for trainer.{min(asked, default='')}"
    kinds = ", ".join(kind.__name__ for kind in ELEMENTWISE)
    makes = f"{name}.configure_optimizers returns an optimizer with"
    yield type(optimizer) not in ELEMENTWISE, f"{type(optimizer).__name__} is not one of {kinds}"
    yield schedules, f"{name} has a learning-rate schedule within a round"
    yield optimizer.state and type(optimizer) is not torch.optim.Adagrad, f"{makes} a state"  # a new Adagrad has one
    yield optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks, f"{makes} hooks"
    on_parameters = any(p._backward_hooks or p._post_accumulate_grad_hooks for p in module.parameters())
    on_layers = any(layer._backward_hooks or layer._backward_pre_hooks for layer in module.modules())
    yield on_parameters or on_layers, f"{name} has hooks on gradients"


def of_loss(module: LightningModule, gradients: Tensor, losses: Tensor) -> Table:
    """Judge what a step returned: nothing depends on parameters that the step did not get from the module."""
    beside = f"the loss of {type(module).__name__} uses parameters from beside its layers, such as a list"
    yield gradients.requires_grad or losses.requires_grad, beside


def of_means(module: LightningModule, means: Sequence[Tensor]) -> Table:
    """Judge whether the loss and the logged values were means over the examples of each batch that was filled up."""
    name = type(module).__name__
    yield means and not torch.cat(list(means)).all(), f"{name} has values that are no means over a batch's examples"


def of_steps(module: LightningModule, asked: set[str], has_drawn: bool, is_changed: bool) -> Table:
    """Judge what the steps of a group did beside their gradients.

    Args:
        module: the module.
        asked: attributes of the Trainer that the module asked for, which describe a single client's training.
        has_drawn: whether the steps drew random numbers of NumPy or Python.
        is_changed: whether the steps changed the module apart from its parameters and buffers.
    """
    name = type(module).__name__
    yield asked, f"{name}.training_step asks for trainer.{min(asked, default='')}"
    yield has_drawn, f"{name} draws random numbers of NumPy or Python, which would be one draw for all clients"
    yield is_changed, f"{name}.training_step sets attributes of the module, or changes what they hold"
