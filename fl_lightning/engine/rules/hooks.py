"""Hooks: the hooks of a run's callbacks, in the order given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fl_lightning.engine.devices.strategy import finish_work
from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.rules.callback import FederatedCallback, Monitor, overrides
from fl_lightning.engine.rules.local_part import ClientPart
from fl_lightning.engine.rules.returned import checked
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.updates.cohort import Cohort


class Hooks:
    """Yields the hooks that a run's callbacks define, and adds up the time that monitors take.

    Args:
        server: counts the monitors' time, and knows the device.
        callbacks: the run's federated callbacks, in the order given.
    """

    def __init__(self, server: Server, callbacks: Sequence[FederatedCallback]) -> None:
        self._server, self.callbacks = server, callbacks
        self.told = set[str]()  # names of buffers that a warning has named
        self.parts = [ClientPart(callback, server) for callback in callbacks if overrides(callback, "local_part")]
        starts = [callback for callback in callbacks if overrides(callback, "start")]
        self._starts: list[Any] = [*starts, *self.parts]  # whatever model a client is given, its own part stays
        own = [each for each in callbacks if overrides(each, "personal") and each not in starts]
        self._personal: list[Any] = [*self._starts, *own]

    def __call__(self, name: str) -> Iterator[Callable[..., Any]]:
        """Yield the hook ``name`` of each callback that defines it."""
        for callback in self.callbacks:
            if not overrides(callback, name):
                continue
            hook = checked(callback, name)
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

    def defines(self, *names: str) -> bool:
        """Tell whether a callback's class defines one of some hooks."""
        return any(overrides(callback, name) for callback in self.callbacks for name in names)

    @property
    def local(self) -> Tensor:
        """(L,) the places of the P parameters that stay with each client."""
        columns = {column for part in self.parts for column in part.columns.tolist()}
        return torch.tensor(sorted(columns), dtype=torch.int64)

    def start(self, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        """Return the model that a client starts from, given the global model."""
        for each in self._starts:
            params, buffers = checked(each, "start")(self._server, client, params, buffers)
        live = params.data_ptr() == self._server.params.data_ptr()  # which training will change
        return (params.clone() if live else params), buffers

    def personal(self, client: int) -> tuple[Tensor, Buffers]:
        """Return the model that serves a client, between two rounds."""
        params, buffers = self._server.params, self._server.read_buffers()
        for each in self._personal:
            params, buffers = checked(each, "personal")(self._server, client, params, buffers)
        return params, buffers

    def settle(self, cohort: Cohort) -> None:
        """Put what stays with the clients of a cohort into the states of the rules."""
        rules = {callback.state_key: callback for callback in self.callbacks}
        for result in cohort.results:
            for (key, name), value in result.stays.items():
                rules[key].state[f"{name}/{result.client}"] = value.cpu()
