"""Repetition: trains a first client of a fit a second time, to see whether state survives from client to client."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial
from typing import Literal

import torch
import torch.distributed
from lightning.pytorch.utilities import rank_zero_info

from fl_lightning.engine.module.failures import error_text
from fl_lightning.engine.module.hidden import fingerprints
from fl_lightning.engine.round import Round
from fl_lightning.engine.rules.callback import attributes_kept
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.training.one_by_one import OneByOne, stops
from fl_lightning.engine.training.outcome import Outcome
from fl_lightning.errors import ConfigurationError

OnHiddenState = Literal["warn", "raise", "off"]


class Repetition:
    """Trains a client that was the first of a fit once more after the others of its round, from the same start.

    Where the two do not end in the same bits, what is neither a parameter nor a buffer nor a remembered attribute leads
    from client to client: a fault of the module, the data or a rule that no list of types can foresee. Of several
    devices, each trains the client that was the next one's first, and so sees, too, what a device computes once, from
    its own first client, and keeps. Monitors do not see the second training, and the attributes of rules are put back
    after it, as far as those of a module are.

    Args:
        alone: trains one client after another.
        on_hidden_state: "warn" says so, "raise" stops the run, "off" trains no client again.
    """

    def __init__(self, alone: OneByOne, on_hidden_state: OnHiddenState) -> None:
        self._on_hidden_state = on_hidden_state
        self._first: tuple[int, Outcome] | None = None  # the client that has trained, and how
        self._is_due = on_hidden_state != "off"
        if self._is_due:
            alone.watch = partial(self._keep, alone)
        self._rules = alone.hooks.rules
        self._alone = alone.without_monitors()

    def _keep(self, alone: OneByOne, run: LocalRun) -> None:
        self._first = run.client, Outcome.of(run)
        alone.watch = None

    def check(self, round: Round) -> None:
        """Train a first client of the fit again, at the end of the fit's first round; all devices must call this.

        Raises:
            ConfigurationError: the client ends elsewhere, and ``on_hidden_state`` is "raise".
        """
        if not self._is_due:
            return
        self._is_due = False
        first = self._first_of_next_device()
        if first is None:
            return
        client, outcome = first
        difference = self._difference(round, client, outcome)
        if difference is None:
            return
        changed = self._changed(round, client)
        label = self._alone.data.datamodule.client_label(client)
        message = f"client {label} of round {round.number} trained a second time, from the same start, {difference}: "
        device = self._alone.orchestrator.device
        if device.type != "cpu" and not changed and not torch.are_deterministic_algorithms_enabled():
            rank_zero_info(f"{message}an operator of the device may not repeat itself (see trainer.deterministic)")
            return
        where = ", ".join(changed[:3]) or "what changes is no attribute or global of the module"
        message += (
            f"something that is neither parameter nor buffer survives from client to client ({where}), so the order of "
            "clients, a stop and several devices change the result: make it anew in on_train_start, or carry it in a "
            "buffer; in a rule, use on_client_start, or keep and recall (model.on_hidden_state: off ends the check)"
        )
        if self._on_hidden_state == "raise":
            raise ConfigurationError(message)
        warnings.warn(message, stacklevel=2)

    def _first_of_next_device(self) -> tuple[int, Outcome | str] | None:
        """Return the client that the next device has trained first, and how it ended there; None if it has none.

        The only device is its own next one. Of another device, what comes is a digest.
        """
        trainer = self._alone.orchestrator.trainer
        if trainer.world_size == 1:
            return self._first
        own = None if self._first is None else (self._first[0], self._first[1].digest())
        firsts: list[tuple[int, str] | None] = [None] * trainer.world_size
        torch.distributed.all_gather_object(firsts, own)
        return firsts[(trainer.global_rank + 1) % trainer.world_size]

    def _difference(self, round: Round, client: int, first: Outcome | str) -> str | None:
        """Train a client again; say how the training differs from the first one, None if it does not."""
        try:
            again = self._train(round, client)
        except Exception as error:
            if stops(error):
                raise
            return f"fails, {error_text(error, self._alone.orchestrator.client)}"
        if isinstance(first, str):
            return None if again.digest() == first else "ends elsewhere than on the device that trained it first"
        distance = first.distance(again)
        if distance == 0:
            return None
        return f"ends elsewhere, {distance:.1e} (relative) from where it ended"

    def _changed(self, round: Round, client: int) -> list[str]:
        """Name what changes when a client trains once more."""
        module = self._alone.orchestrator.client
        datamodule = self._alone.data.datamodule
        before = fingerprints(module, datamodule)
        with suppress(Exception):
            self._train(round, client)
        after = fingerprints(module, datamodule)
        return [name for name, value in after.items() if before.get(name) != value]

    def _train(self, round: Round, client: int) -> Outcome:
        alone = self._alone
        with attributes_kept(self._rules), alone.training_of(round, client) as run:
            alone.local.train(run, partial(alone.data.batches, client, round.number))
            return Outcome.of(run)
