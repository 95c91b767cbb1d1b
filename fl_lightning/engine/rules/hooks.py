"""Hooks: the hooks of a run's callbacks, in the order given, each checked for what it returns and writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fl_lightning.engine.devices.strategy import finish_work
from fl_lightning.engine.module.failures import guard_hook
from fl_lightning.engine.module.params import has_changed
from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.rules.callback import CLIENT_HOOKS, FederatedCallback, Monitor, overrides
from fl_lightning.engine.rules.local_part import ClientPart
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.updates.cohort import Cohort
from fl_lightning.engine.updates.updates import Updates
from fl_lightning.errors import ConfigurationError

GUARDED = {*CLIENT_HOOKS, "upload", "start"}
LOCAL = ("loss", "closure", "on_before_client_step", "on_after_client_step")  # get the run first
ACT_IN_PLACE = (*LOCAL[2:], "on_client_start", "on_client_end", "refine", "on_round_end")
BEFORE_STEP = ("aggregate", "reduce", "update")  # the server holds the model that the clients started from


class Hooks:
    """Yields the hooks that a run's callbacks define, and adds up the time that monitors take.

    Args:
        orchestrator: counts the monitors' time, and knows the device.
        callbacks: the run's federated callbacks, in the order given.
    """

    def __init__(self, orchestrator: Server, callbacks: Sequence[FederatedCallback]) -> None:
        self._orchestrator = orchestrator
        self.callbacks = callbacks
        self.warned_buffers = set[str]()  # names of buffers that a warning has named
        self.parts = [ClientPart(callback, orchestrator) for callback in callbacks if overrides(callback, "local_part")]
        starts = [callback for callback in callbacks if overrides(callback, "start")]
        self._starts: list[Any] = [*starts, *self.parts]  # whatever model a client is given, its own part stays
        self.at_site = False  # whether clients train here for a server elsewhere
        personal = [callback for callback in callbacks if overrides(callback, "personal") and callback not in starts]
        self._personal: list[Any] = [*self._starts, *personal]

    def __call__(self, name: str) -> Iterator[Callable[..., Any]]:
        """Yield the hook ``name`` of each callback that defines it."""
        for callback in self.callbacks:
            if not overrides(callback, name):
                continue
            hook = checked_hook(callback, name)
            if not isinstance(callback, Monitor):
                yield hook
                continue
            finish_work(self._orchestrator.device)  # else the monitor's time would include its wait
            began = time.perf_counter()
            yield hook
            finish_work(self._orchestrator.device)
            self._orchestrator.seconds_looking += time.perf_counter() - began

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
        """Return the model that a client starts from, given the global model, or what the server has made of it."""
        for source in self._starts[self._at_server if self.at_site else 0 :]:
            params, buffers = checked_hook(source, "start")(self._orchestrator, client, params, buffers)
        if params.data_ptr() == self._orchestrator.params.data_ptr():  # which training will change
            params = params.clone()
        return params, buffers

    @cached_property
    def _at_server(self) -> int:
        """How many of those that define ``start`` need the server: they come first.

        Raises:
            ConfigurationError: one of them comes after one that needs the client.
        """
        needs = [getattr(source, "starts_at_server", False) for source in self._starts]
        if needs != sorted(needs, reverse=True):
            first, later = (type(self._starts[needs.index(at_server)]).__name__ for at_server in (False, True))
            raise ConfigurationError(
                f"{later} starts clients at the server, after {first}, which needs the client's data or state: where "
                f"clients train on other machines, list {later} first"
            )
        return sum(needs)

    def start_at_server(self, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        """Return what the server makes of the global model for a client to start from on another machine."""
        for source in self._starts[: self._at_server]:
            params, buffers = checked_hook(source, "start")(self._orchestrator, client, params, buffers)
        return params, buffers

    def personal(self, client: int) -> tuple[Tensor, Buffers]:
        """Return the model that serves a client, between two rounds."""
        params = self._orchestrator.params
        buffers = self._orchestrator.read_buffers()
        for source in self._personal:
            params, buffers = checked_hook(source, "personal")(self._orchestrator, client, params, buffers)
        return params, buffers

    def store_kept(self, cohort: Cohort) -> None:
        """Store what stays with the clients of a cohort in the states of the rules (:meth:`FederatedCallback.keep`)."""
        rules = {callback.state_key: callback for callback in self.callbacks}
        for result in cohort.results:
            for (key, name), value in result.stays.items():
                rules[key].state[f"{name}/{result.client}"] = value.cpu()


def checked_hook(rule: Any, name: str) -> Callable[..., Any]:
    """Return a hook that refuses a wrong result, or a write in place; where it is compiled, it has served before."""
    method = getattr(rule, name)
    hook = guard_hook(method) if name in GUARDED else method
    place = 0 if name in LOCAL else 1  # of the run or the cohort among the arguments
    label = f"{type(rule).__name__}.{name}"

    def call(*args: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return hook(*args)
        before = _count_writes(args[place])
        model = _model_to_leave(rule, name, args)
        writes = 0 if model is None else _count_writes_to_model(args[0], model[0])
        value = hook(*args)
        expected = None if _are_groups(rule, name, value) else _expected_instead(name, value, args)
        if expected is not None:
            advice = "is a return missing at its end?" if value is None else "correct what the hook returns"
            raise ConfigurationError(f"{label} must return {expected}, got {_describe(value)}: {advice}")
        after = _count_writes(args[place])
        written = [part for part, count in before.items() if after[part] != count]
        if model is not None and has_changed(*model, _count_writes_to_model(args[0], model[0]) - writes):
            written.append("run.params" if name in CLIENT_HOOKS else "orchestrator.params")
        if written:
            raise ConfigurationError(f"{label} must leave {written[0]} as it is, but writes to it: change a copy")
        return value

    return call


def _model_to_leave(rule: Any, name: str, args: Any) -> tuple[Tensor, Tensor] | None:
    """Return the parameters (P,) that a hook must leave as they are, and their values now; None if it may write."""
    if name in BEFORE_STEP:
        return args[0].params, args[1].anchor
    if name == "on_round_end":
        params = args[0].params
    elif isinstance(rule, Monitor) and name in ("on_client_start", "on_client_end"):
        params = args[1].params
    else:
        return None
    return params, params.detach().clone()


def _count_writes_to_model(orchestrator: Server, params: Tensor) -> int:
    """Count the writes in place to the module's parameters, and to those of a run (P,), which may lie elsewhere."""
    return orchestrator.flat.writes + params._version


def _are_groups(rule: Any, name: str, value: Any) -> bool:
    """Tell whether a hook has returned means of clients, as its rule says that it may."""
    if name != "aggregate" or not rule.groups or not isinstance(value, Cohort):
        return False
    form = value.mixing.shape
    return value.mixing.dtype == torch.float64 and form == (len(value.weights), len(value.clients)) and form[0] > 0


def _count_writes(argument: Any) -> dict[str, int]:
    """Count the writes in place to the anchor of a run, or to the tensors of a cohort."""
    if isinstance(argument, int):  # ``start`` gets the client's number
        return {}
    if not isinstance(argument, Cohort):
        return {"run.anchor": argument.anchor._version}
    counts = {f"cohort.{name}": value._version for name, value in vars(argument).items() if isinstance(value, Tensor)}
    counts.setdefault("cohort.gram", 0)  # if not computed yet
    updates = argument.updates
    if isinstance(updates, Updates) and updates.order == list(range(len(updates.own))):
        counts["cohort.deltas"] = updates.own._version  # in another order, ``deltas`` sorts them first
    return counts


def _expected_instead(name: str, value: Any, args: Any) -> str | None:
    """Say what a hook should have returned in place of a value, given its arguments; None if the value will do."""
    if name == "loss":
        is_number = isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point()
        fits = is_number and value.requires_grad >= args[-1].requires_grad  # a vmap inside of the gradient hides both
        return None if fits else "a loss, one floating-point number with a gradient"
    if name == "closure":
        return None if callable(value) else "a function that returns the loss"
    if name in ACT_IN_PLACE:
        return "nothing (it acts in place)" if isinstance(value, Tensor) else None
    model = args[-1]  # has the form that the result must have
    if name == "reduce":
        model = args[-1].anchor
    elif name in ("start", "personal"):
        model = args[-2:]
    expected = _describe(model)
    return None if _describe(value) == expected else expected


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')} on {value.device}"
    if isinstance(value, Cohort):
        added = value.anchor if value.added is None else value.added
        return (
            f"a Cohort (weights: {_describe(value.weights)}; mixing: {_describe(value.mixing)}; "
            f"added: {_describe(added)})"
        )
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], Sequence):
        return f"{_describe(value[0])} and {len(value[1])} buffers"
    return "None" if value is None else type(value).__name__
