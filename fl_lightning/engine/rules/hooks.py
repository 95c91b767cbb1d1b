"""Hooks: the hooks of a run's callbacks, in the order given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fl_lightning.engine.devices.strategy import finish_work
from fl_lightning.engine.module.failures import guarded
from fl_lightning.engine.rules.callback import CLIENT_HOOKS, FederatedCallback, Monitor, overrides
from fl_lightning.engine.rules.server import Server


class Hooks:
    """Yields the hooks that a run's callbacks define, and adds up the time that monitors take.

    Args:
        server: counts the monitors' time, and knows the device.
        callbacks: the run's federated callbacks, in the order given.
    """

    def __init__(self, server: Server, callbacks: Sequence[FederatedCallback]) -> None:
        self._server, self.callbacks = server, callbacks

    def __call__(self, name: str) -> Iterator[Callable[..., Any]]:
        """Yield the hook ``name`` of each callback that defines it."""
        for callback in self.callbacks:
            if not overrides(callback, name):
                continue
            hook = guarded(getattr(callback, name)) if name in CLIENT_HOOKS else getattr(callback, name)
            if not isinstance(callback, Monitor):
                yield hook
                continue
            finish_work(self._server.device)  # else the monitor's time would include its wait
            began = time.perf_counter()
            yield hook
            finish_work(self._server.device)
            self._server.seconds_looking += time.perf_counter() - began

    @property
    def rules(self) -> list[FederatedCallback]:
        """The callbacks that may change a round, in the order given."""
        return [callback for callback in self.callbacks if not isinstance(callback, Monitor)]

    def defines(self, name: str) -> bool:
        """Tell whether a callback's class defines a hook."""
        return any(overrides(callback, name) for callback in self.callbacks)
