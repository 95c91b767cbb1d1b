"""The server's work in a round: the rules make one update of the clients' updates, and the server applies it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fl_lightning.engine.checks import check_finite
from fl_lightning.engine.devices.strategy import agree
from fl_lightning.engine.module.exact import full_float32
from fl_lightning.engine.rules.callback import overrides
from fl_lightning.engine.rules.hooks import Hooks, checked
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.updates.buffers import derive_buffers, tell_shortened
from fl_lightning.engine.updates.cohort import ClientResult, Cohort
from fl_lightning.errors import values_of


def aggregate(server: Server, hooks: Hooks, cohort: Cohort) -> None:
    """Let the rules make one update of the cohort's, step the server optimizer, refine the new model, and log.

    Args:
        server: the orchestrator, which holds the global model.
        hooks: the callbacks' hooks.
        cohort: the round's updates.
    """
    share_loss_scale(server, cohort.results)
    with full_float32():
        for change in hooks("aggregate"):
            cohort = change(server, cohort)
        reducer = next((checked(rule, "reduce") for rule in hooks.rules if rule.reduce is not None), None)
        _apply(server, hooks, cohort, cohort.update if reducer is None else reducer(server, cohort))
    server.write_buffers(cohort.buffers)
    derive_buffers(server.client)
    _refine(server, hooks, cohort)
    tell_shortened(server.buffer_names, cohort.results, server.read_buffers(), hooks.told)
    hooks.settle(cohort)
    for look in hooks("on_round_end"):
        look(server, cohort)
    _log_metrics(server, cohort)


def step_alone(server: Server, hooks: Hooks, round: int) -> None:
    """Step the server optimizer in a round without an update, by what rules make of no clients."""
    nobody = Cohort.collect(round, server.params.clone(), server.params.new_empty(0, len(server.params)), [])
    with full_float32():
        for rule in (each for each in hooks.rules if each.steps_alone):
            nobody = checked(rule, "aggregate")(server, nobody)
        _apply(server, hooks, nobody, nobody.update)


def _apply(server: Server, hooks: Hooks, cohort: Cohort, update: Tensor) -> None:
    for change in hooks("update"):
        update = change(server, cohort, update)
    agree(server.trainer, update)
    check_finite(update, server.round, hooks.rules)
    local = [(part.columns, server.params[part.columns]) for part in hooks.parts]
    step_server(server, update)
    for columns, values in local:  # which noise, weight decay or momentum may have moved
        server.params[columns] = values


def _refine(server: Server, hooks: Hooks, cohort: Cohort) -> None:
    refiners = [rule for rule in hooks.rules if overrides(rule, "refine")]
    for rule in refiners:
        checked(rule, "refine")(server, cohort)
    if refiners:
        derive_buffers(server.client)
        agree(server.trainer, server.params)
        check_finite(server.params, server.round, refiners)


def _log_metrics(server: Server, cohort: Cohort) -> None:
    shown: dict[str, dict[str, bool]] = {"train/loss": {"prog_bar": True}}
    for result in cohort.results:
        shown |= result.shown
    for name, value in cohort.metrics.items():
        server.log_round(name, value, **shown.get(name, {}))
        server.log_left_out(name, [each.client for each in cohort.results if math.isnan(each.metrics.get(name, 0))])


def share_loss_scale(server: Server, results: Sequence[ClientResult]) -> None:
    """Start the next round's clients from the smallest loss scale of this round's."""
    if scales := [result.loss_scale for result in results if result.loss_scale is not None]:
        scale, tracker = min(scales)
        scaler: Any = server.trainer.precision_plugin.scaler  # type: ignore[attr-defined]  # of 16-mixed
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": tracker})


def step_server(server: Server, update: Tensor | None) -> None:
    """Step the server optimizer by an update (P,); without an update, the step changes nothing but is counted."""
    precision: Any = server.trainer.precision_plugin
    scaler = getattr(precision, "scaler", None)
    if update is not None:
        server.flat.set_gradient(-update)
    try:
        if scaler is not None:
            precision.scaler = None  # the update has no loss scale
        with values_of("model.server_optimizer"):
            server.optimizers().step()  # type: ignore[union-attr]  # one optimizer: configure_optimizers returns one
    finally:
        if scaler is not None:
            precision.scaler = scaler
    server.flat.clear_gradient()
