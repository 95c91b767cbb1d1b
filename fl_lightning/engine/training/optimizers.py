"""A client's optimizers and schedules: made for each client, their rates set by the round, measured for FedNova."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fl_lightning.engine.rules.server_optimizer import make_schedulers
from fl_lightning.engine.rules.work import Factors, LocalSettings
from fl_lightning.errors import ConfigurationError
from fl_lightning.lightning_private import optimizers_and_schedules

RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # learning rates in a parameter group; the last two are OneCycleLR's


def make_optimizers(
    module: LightningModule, work: LocalSettings | None = None
) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
    """Make optimizers and schedules with the module's ``configure_optimizers``, in any form that Lightning accepts.

    Args:
        module: the module.
        work: the local work of every client, to warn of schedules that change no rate in it; None for no warning.

    Raises:
        ConfigurationError: ``configure_optimizers`` returns no optimizer, a ReduceLROnPlateau that could change a rate
            within a round, or, with automatic optimization, more than one optimizer.
    """
    name = type(module).__name__
    made = module.configure_optimizers()
    if isinstance(made, Optimizer):
        return [made], []
    if made is None:
        raise ConfigurationError(f"{name}.configure_optimizers must return an optimizer, got None")
    optimizers, configs = optimizers_and_schedules(made, module.automatic_optimization)
    if not optimizers:
        raise ConfigurationError(f"{name}.configure_optimizers must return an optimizer, got none")
    if module.automatic_optimization and len(optimizers) > 1:
        raise ConfigurationError(
            f"{name}.configure_optimizers returns {len(optimizers)} optimizers: automatic optimization takes one, for "
            "more set automatic_optimization = False"
        )
    schedules = []
    for config in configs:
        idle = _plateau(module, config) if config.reduce_on_plateau else _too_few_epochs(module, config, work)
        if work is not None and idle:
            rank_zero_warn(
                f"{type(config.scheduler).__name__} of {name} changes no learning rate: {idle}; for rates that change "
                "from round to round, set model.local_lr_scheduler"
            )
        if not config.reduce_on_plateau:
            schedules.append(config)
    return optimizers, schedules


def _plateau(module: LightningModule, config: LRSchedulerConfig) -> str:
    """Say why a ReduceLROnPlateau changes no learning rate: it waits for more steps than a client takes.

    Raises:
        ConfigurationError: the schedule could change a rate.
    """
    name = type(module).__name__
    patience = config.scheduler.patience  # type: ignore[union-attr]  # of ReduceLROnPlateau
    trainer = module.trainer
    most = trainer.max_epochs if config.interval == "epoch" else trainer.estimated_stepping_batches
    steps = int(most or 0) // config.frequency
    if steps > patience:
        raise ConfigurationError(
            f"{name}.configure_optimizers returns ReduceLROnPlateau with a patience of {patience}, but a client has "
            f"nothing to monitor in its {steps} {config.interval}s of a round: use a scheduler that goes by steps or "
            f"epochs, a patience of at least {steps}, or model.local_lr_scheduler, which goes by rounds"
        )
    return f"its patience of {patience} is longer than a client's round ({steps} {config.interval}s)"


def _too_few_epochs(module: LightningModule, config: LRSchedulerConfig, work: LocalSettings | None) -> str | None:
    """Say why a schedule that the module does not step itself changes no learning rate; None if it may change one."""
    if work is None or work.epochs is None or not module.automatic_optimization or config.interval != "epoch":
        return None
    if ceil(work.epochs) > config.frequency:
        return None
    after = "each epoch" if config.frequency == 1 else f"{config.frequency} epochs"
    return f"it begins anew in each round, goes by one step after {after}, and a client's round has {work.epochs:g}"


def scale_rates(
    optimizers: Sequence[Optimizer], schedules: Sequence[LRSchedulerConfig], factors: Sequence[Sequence[float]]
) -> None:
    """Multiply all learning rates, including the rates that schedules start from and rise to.

    Args:
        optimizers: a client's optimizers.
        schedules: their schedules.
        factors: one factor for each parameter group of each optimizer.
    """
    factors_of = {}  # by the optimizer's id
    for optimizer, group_factors in zip(optimizers, factors, strict=True):
        factors_of[id(optimizer)] = group_factors
        for group, factor in zip(optimizer.param_groups, group_factors, strict=True):
            for name in RATES:
                if name in group:
                    group[name] = factor * group[name]
    for config in schedules:
        for scheduler in _with_parts(config.scheduler):
            group_factors = factors_of[id(scheduler.optimizer)]
            for name in ("base_lrs", "max_lrs"):
                if hasattr(scheduler, name):
                    rates = getattr(scheduler, name)
                    setattr(scheduler, name, [factor * rate for factor, rate in zip(group_factors, rates, strict=True)])


class RoundRates:
    """The clients' learning rates in each round, shown by optimizers that never step.

    Args:
        optimizers: a client's optimizers.
        make_scheduler: makes a schedule of a client's optimizer, stepped once a round; None for ``decay``.
        decay: factor on all rates, per round.

    Attributes:
        optimizers: a client's optimizers, with the rates of the present round.
        schedulers: the schedules, one per optimizer.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], make_scheduler: Callable[[Optimizer], Any] | None, decay: float
    ) -> None:
        self.optimizers = list(optimizers)
        for group in self._groups():  # the rates before a schedule within a round
            group["lr"] = group.pop("initial_lr", group["lr"])
        self._first_rates = [float(group["lr"]) for group in self._groups()]
        self._decay = None if make_scheduler else decay
        make = make_scheduler or (lambda optimizer: LambdaLR(optimizer, partial(pow, decay)))
        self.schedulers = make_schedulers("model.local_lr_scheduler", make, optimizers)

    def factors(self, round: int) -> Factors:
        """Return factors on the rates of all optimizers' parameter groups in a round 1, 2, …; None if all are 1."""
        if self._decay == 1:
            return None
        if self._decay is not None:
            factor = self._decay ** (round - 1)
            return [[factor] * len(optimizer.param_groups) for optimizer in self.optimizers]
        first_rates = iter(self._first_rates)
        factors = []
        for optimizer in self.optimizers:
            group_factors = []
            for group in optimizer.param_groups:
                first = next(first_rates)
                group_factors.append(float(group["lr"]) / first if first else 1.0)
            factors.append(group_factors)
        return factors

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]


def _with_parts(scheduler: Any) -> Iterator[Any]:
    """Yield a schedule and the schedules that it combines, if it is a SequentialLR or ChainedScheduler."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _with_parts(part)
