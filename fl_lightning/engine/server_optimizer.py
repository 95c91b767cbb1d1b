"""The server's optimizer and its schedule, at the start of a run and on resume."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fl_lightning.errors import ConfigurationError

Settings = list[dict[str, Any]]  # of each parameter group

SCHEDULED = ("lr", "momentum", "betas")  # the settings that schedules move


def make_schedulers(make: Callable[[Optimizer], Any] | None, optimizer: Optimizer) -> list[LRScheduler]:
    """The server's schedule, if there is one, in a list.

    Raises:
        ConfigurationError: it waits for a metric.
    """
    schedulers = [make(optimizer)] if make else []
    if any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in schedulers):
        raise ConfigurationError(
            "server_scheduler must go by rounds, got ReduceLROnPlateau, which waits for a metric: use another one"
        )
    return schedulers


def settings_of(optimizer: Optimizer) -> Settings:
    """An optimizer's settings, without its parameters."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def go_on(
    optimizer: Optimizer, schedulers: Sequence[Any], settings: Settings, saved: Settings | None, rounds: int
) -> None:
    """Let the run's own settings win over a checkpoint's, and put the schedule where it stands after some rounds.

    A schedule depends on its settings and the round alone: it is run through again.

    Args:
        optimizer: as the checkpoint, if any, has left it.
        schedulers: as they were made.
        settings: what the run set.
        saved: what the run that saved the checkpoint had set.
        rounds: done so far.
    """
    before = saved or [{} for _ in settings]
    for group, now, then in zip(optimizer.param_groups, settings, before, strict=False):
        # What the optimizer itself counts among its settings (Prodigy's d, …) stays as the checkpoint has it.
        group.update({n: value for n, value in now.items() if n in SCHEDULED or value != then.get(n)})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s).*lr_scheduler\.step\(\)")  # called before any optimizer.step()
        for scheduler in schedulers:
            for _ in range(rounds):
                scheduler.step()
