"""The server's optimizer and its schedule, at the start of a run and on resume."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fl_lightning.errors import ConfigurationError, values_of

Settings = list[dict[str, Any]]  # one dict per parameter group

SCHEDULED = ("lr", "momentum", "betas")  # the settings that schedules change


def make_schedulers(
    setting: str, make: Callable[[Optimizer], Any], optimizers: Iterable[Optimizer]
) -> list[LRScheduler]:
    """Make schedules that are stepped once a round.

    Args:
        setting: name of the setting that makes a schedule, for messages.
        make: makes the schedule of an optimizer.
        optimizers: the optimizers.

    Raises:
        ConfigurationError: a schedule waits for a metric, or the setting holds a bad value.
    """
    with values_of(setting):
        schedulers = [make(optimizer) for optimizer in optimizers]
    if any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in schedulers):
        raise ConfigurationError(
            f"{setting} must go by rounds alone, got ReduceLROnPlateau, which waits for a metric: use another scheduler"
        )
    return schedulers


def settings_of(optimizer: Optimizer) -> Settings:
    """Return the settings of an optimizer's parameter groups, without the parameters."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def go_on(
    optimizer: Optimizer, schedulers: Sequence[Any], settings: Settings, saved: Settings | None, rounds: int
) -> None:
    """Give the optimizer the run's settings in place of the checkpoint's, and advance the schedules to the round.

    A schedule depends on its settings and the round alone, so all its steps are taken again.

    Args:
        optimizer: the server optimizer, with the checkpoint's state if there is a checkpoint.
        schedulers: the schedules, newly made.
        settings: the settings of this run.
        saved: the settings of the run that saved the checkpoint, or None without a checkpoint.
        rounds: number of rounds done so far.
    """
    before = saved or [{} for _ in settings]
    for group, now, then in zip(optimizer.param_groups, settings, before, strict=False):
        for name, value in now.items():
            # Values that the optimizer itself keeps among its settings (Prodigy's d, …) stay as in the checkpoint.
            if name in SCHEDULED or value != then.get(name):
                group[name] = value
    for _ in range(rounds):
        step_schedules(schedulers)


def step_schedules(schedulers: Sequence[Any]) -> None:
    """Step schedules, also those of an optimizer that has not stepped, about which torch would warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s).*lr_scheduler\.step\(\)")
        for scheduler in schedulers:
            scheduler.step()
