"""Aggregation: the part of the orchestrator that does the server's work in a round."""

from __future__ import annotations

from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fl_lightning import lightning_private
from fl_lightning.engine.checks import check_finite
from fl_lightning.engine.devices.strategy import agree, busy
from fl_lightning.engine.module.exact import full_float32
from fl_lightning.engine.module.failures import ending
from fl_lightning.engine.rules.callback import FederatedCallback, overrides, rules_of
from fl_lightning.engine.rules.server_optimizer import step_schedules
from fl_lightning.engine.states.disk import client_bytes
from fl_lightning.engine.training.in_lockstep.trainer import GroupTraining
from fl_lightning.engine.updates.cohort import Cohort
from fl_lightning.errors import values_of


class Aggregation(GroupTraining):
    """Ends a round: the rules combine the clients' updates into one update, with which the server optimizer steps."""

    client_states: Literal["memory", "disk"]
    _skipped: int  # number of rounds in a row whose only client was left out

    @property
    def rules(self) -> list[FederatedCallback]:
        """The run's rules: its federated callbacks except the monitors, in the order given."""
        return rules_of(self.trainer)

    def end_round(self) -> None:
        """Aggregate the updates of the round's clients, step the server optimizer and log the round."""
        cohort = self.collect()
        busy(self.trainer, f"the server's part of round {self.round}")
        self._training.end_round(cohort.results if cohort else [])
        if cohort:
            self.tell_failures()
            self._aggregate(cohort)
            self._skipped = 0
        else:
            self._skip_round()
        step_schedules([config.scheduler for config in self.trainer.lr_scheduler_configs])
        self.log_round_number(self.round)
        self.rounds_done += 1
        del self._results

    def _skip_round(self) -> None:
        """Leave the global model as it is after a round without an update."""
        counts, reason = self._turnout.counts, "its only client is left out"
        if not counts["arrived"]:
            reason = "no update arrives ({selected} selected, {dropped} dropped out, {late} late)".format(**counts)
        elif counts["arrived"] > 1 or self._skipped + 1 >= self.data.num_with_data:
            message, error = self._failures[0] if self._failures else (f"round {self.round}: no client is left", None)
            self._untold.clear()  # one line stands for all
            raise ending(f"{message}; so is every other one", error) from error
        else:
            self._skipped += 1
        self.tell_failures()
        rank_zero_warn(f"round {self.round} is skipped: {reason}")
        self._step_server(None)

    def _aggregate(self, cohort: Cohort) -> None:
        with full_float32():
            for aggregate in self.hooks("aggregate"):
                cohort = aggregate(self, cohort)
            self._step_server(self._reduce(cohort))
        self.write_buffers(cohort.buffers)
        self._refine(cohort)
        for look in self.hooks("on_round_end"):
            look(self, cohort)
        for name, value in cohort.metrics.items():
            self.log_round(name, value, prog_bar=name == "train/loss")
        self._log_states()

    def _log_states(self) -> None:
        """Log the size of the clients' states; states on disk can be read by all devices after this call."""
        if held := sum(client_bytes(callback.state) for callback in self.callbacks):
            self.log_round("clients/state_bytes", float(held))
        if self.client_states == "disk":
            self.trainer.strategy.barrier()

    def _reduce(self, cohort: Cohort) -> Tensor:
        rules = self.rules
        reducer = next((rule.reduce for rule in rules if rule.reduce is not None), None)
        update = cohort.update if reducer is None else reducer(self, cohort)
        for rule in rules:
            update = rule.update(self, cohort, update)
        agree(self.trainer, update)
        check_finite(update, self.round, rules)
        return update

    def _refine(self, cohort: Cohort) -> None:
        refiners = [rule for rule in self.rules if overrides(rule, "refine")]
        for rule in refiners:
            rule.refine(self, cohort)
        if refiners:
            agree(self.trainer, self.params)
            check_finite(self.params, self.round, refiners)

    def _step_server(self, update: Tensor | None) -> None:
        """Step the server optimizer by an update (P,); without an update, the step changes nothing but is counted."""
        precision: Any = self.trainer.precision_plugin
        scaler = getattr(precision, "scaler", None)
        if update is not None:
            self._flat.set_gradient(-update)
        try:
            if scaler is not None:
                precision.scaler = None  # the update has no loss scale
            with values_of("model.server_optimizer"):
                self.optimizers().step()  # type: ignore[union-attr]  # one optimizer: configure_optimizers returns one
        finally:
            if scaler is not None:
                precision.scaler = scaler
        self._flat.clear_gradient()

    def log_round_number(self, round: int) -> None:
        """Log a round's number, as the metric ``round`` and as the step of the metrics logged with it."""
        self.set_step(round)
        self.log_round("round", float(round))

    def set_step(self, round: int) -> None:
        """Make the round the step of the loggers: Lightning would count batches, which are clients here."""
        lightning_private.set_step(self.trainer, round)
