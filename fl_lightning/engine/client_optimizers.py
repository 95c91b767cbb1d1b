"""A client's optimizers and schedules: made anew for each client, slowed by the round, measured for FedNova."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import Optimizer

from fl_lightning.engine.lightning_private import configured
from fl_lightning.errors import ConfigurationError

RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # of a group; the last two are OneCycleLR's


def make_optimizers(module: LightningModule) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
    """Call the module's ``configure_optimizers``, which may return any of the forms that Lightning takes.

    Raises:
        ConfigurationError: it returns no optimizer, or a schedule that waits for a metric.
    """
    name, made = type(module).__name__, module.configure_optimizers()
    if isinstance(made, Optimizer):
        return [made], []
    if made is None:
        raise ConfigurationError(f"{name}.configure_optimizers must return an optimizer, got None")
    optimizers, configs = configured(made, module.automatic_optimization)
    if module.automatic_optimization and len(optimizers) > 1:
        raise ConfigurationError(
            f"{name}.configure_optimizers returns {len(optimizers)} optimizers: automatic optimization takes one, for "
            "more set automatic_optimization = False"
        )
    if any(config.reduce_on_plateau for config in configs):
        raise ConfigurationError(
            f"{name}.configure_optimizers returns ReduceLROnPlateau, but a client has nothing to monitor within a "
            "round: use a scheduler that goes by steps or epochs"
        )
    return optimizers, configs


def scale_rates(optimizers: Sequence[Optimizer], schedules: Sequence[LRSchedulerConfig], factor: float) -> None:
    """Multiply all learning rates, those that schedules start from and rise to among them."""
    if factor == 1:
        return
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group.update({name: factor * group[name] for name in RATES if name in group})
    for config in schedules:
        for scheduler in _with_parts(config.scheduler):
            for name in ("base_lrs", "max_lrs"):
                if hasattr(scheduler, name):
                    setattr(scheduler, name, [factor * rate for rate in getattr(scheduler, name)])


def _with_parts(scheduler: Any) -> Iterator[Any]:
    """A schedule and the schedules that a SequentialLR or ChainedScheduler is made of."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _with_parts(part)


def displacement(step_sizes: Sequence[float], group: Mapping[str, Any], proximal: float) -> float:
    """How far steps of these sizes take a parameter whose gradient is always 1, but for a proximal term's.

    Args:
        step_sizes: learning rates, one a step.
        group: the optimizer's settings: momentum, dampening and nesterov count.
        proximal: μ of the term μ/2 ‖w - w_start‖².
    """
    momentum, dampening = group.get("momentum", 0.0), group.get("dampening", 0.0)
    reached, velocity = 0.0, None
    for size in step_sizes:
        gradient = 1.0 - proximal * reached
        velocity = gradient if velocity is None else momentum * velocity + (1 - dampening) * gradient
        direction = gradient + momentum * velocity if group.get("nesterov") else velocity
        reached += size * (direction if momentum else gradient)
    return reached
