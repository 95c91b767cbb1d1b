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
from fl_lightning.engine.rules.hooks import Hooks, checked_hook
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.updates.buffers import derive_buffers, tell_shortened
from fl_lightning.engine.updates.cohort import Cohort
from fl_lightning.errors import values_of


def aggregate(orchestrator: Server, hooks: Hooks, cohort: Cohort) -> None:
    """Let the rules make one update of the cohort's, step the server optimizer, refine the new model, and log.

    Args:
        orchestrator: the orchestrator, which holds the global model.
        hooks: the callbacks' hooks.
        cohort: the round's updates.
    """
    share_loss_scale(orchestrator, [result.loss_scale for result in cohort.results])
    with full_float32():
        for change in hooks("aggregate"):
            cohort = change(orchestrator, cohort)
        update = _reduce(orchestrator, hooks, cohort)
        cohort = cohort.by_client()
        _apply(orchestrator, hooks, cohort, update)
    orchestrator.write_buffers(cohort.buffers)
    derive_buffers(orchestrator.client)
    _refine(orchestrator, hooks, cohort)
    tell_shortened(orchestrator.buffer_names, cohort.results, orchestrator.read_buffers(), hooks.warned_buffers)
    hooks.store_kept(cohort)
    for look in hooks("on_round_end"):
        look(orchestrator, cohort)
    _log_metrics(orchestrator, cohort)


def step_alone(orchestrator: Server, hooks: Hooks, round: int) -> None:
    """Step the server optimizer in a round without an update, by what rules make of no clients."""
    params = orchestrator.params
    nobody = Cohort.collect(round, params.clone(), params.new_empty(0, len(params)), [])
    with full_float32():
        for rule in hooks.rules:
            if rule.steps_alone:
                nobody = checked_hook(rule, "aggregate")(orchestrator, nobody)
        _apply(orchestrator, hooks, nobody, nobody.update)


def _reduce(orchestrator: Server, hooks: Hooks, cohort: Cohort) -> Tensor:
    """Make one update (P,) of the cohort's, by the rule that defines ``reduce`` or as the weighted sum."""
    for rule in hooks.rules:
        if rule.reduce is not None:
            update: Tensor = checked_hook(rule, "reduce")(orchestrator, cohort)
            return update
    return cohort.update


def _apply(orchestrator: Server, hooks: Hooks, cohort: Cohort, update: Tensor) -> None:
    for change in hooks("update"):
        update = change(orchestrator, cohort, update)
    agree(orchestrator.trainer, update)
    check_finite(update, orchestrator.round, hooks.rules)
    local = [(part.columns, orchestrator.params[part.columns]) for part in hooks.parts]
    step_server(orchestrator, update)
    for columns, values in local:  # which noise, weight decay or momentum may have moved
        orchestrator.params[columns] = values


def _refine(orchestrator: Server, hooks: Hooks, cohort: Cohort) -> None:
    refiners = [rule for rule in hooks.rules if overrides(rule, "refine")]
    for rule in refiners:
        checked_hook(rule, "refine")(orchestrator, cohort)
    if refiners:
        derive_buffers(orchestrator.client)
        agree(orchestrator.trainer, orchestrator.params)
        check_finite(orchestrator.params, orchestrator.round, refiners)


def _log_metrics(orchestrator: Server, cohort: Cohort) -> None:
    shown: dict[str, dict[str, bool]] = {"train/loss": {"prog_bar": True}}
    for result in cohort.results:
        shown |= result.shown
    for name, value in cohort.metrics.items():
        orchestrator.log_round(name, value, **shown.get(name, {}))
        undefined = [result.client for result in cohort.results if math.isnan(result.metrics.get(name, 0))]
        orchestrator.log_left_out(name, undefined)


def share_loss_scale(orchestrator: Server, scales: Sequence[tuple[float, int] | None]) -> None:
    """Start the next clients from the smallest of some loss scales, each with its growth tracker."""
    known = [scale for scale in scales if scale is not None]
    if known:
        scale, tracker = min(known)
        scaler: Any = orchestrator.trainer.precision_plugin.scaler  # type: ignore[attr-defined]  # of 16-mixed
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": tracker})


def step_server(orchestrator: Server, update: Tensor | None) -> None:
    """Step the server optimizer by an update (P,); without an update, the step changes nothing but is counted."""
    precision: Any = orchestrator.trainer.precision_plugin
    scaler = getattr(precision, "scaler", None)
    if update is not None:
        orchestrator.flat.set_gradient(-update)
    try:
        if scaler is not None:
            precision.scaler = None  # the update has no loss scale
        with values_of("model.server_optimizer"):
            orchestrator.optimizers().step()  # type: ignore[union-attr]  # one optimizer: configure_optimizers returns one
    finally:
        if scaler is not None:
            precision.scaler = scaler
    orchestrator.flat.clear_gradient()
