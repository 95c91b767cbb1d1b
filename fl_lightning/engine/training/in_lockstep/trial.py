"""Trial: tries out whether a client in a group sends what the same client sends alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from itertools import chain, islice
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from fl_lightning.engine.devices.strategy import finish_work
from fl_lightning.engine.module.params import is_finite
from fl_lightning.engine.round import Round
from fl_lightning.engine.rules.hooks import Hooks
from fl_lightning.engine.training.in_lockstep.batches import Part, stack_batches
from fl_lightning.engine.training.in_lockstep.groups import Groups
from fl_lightning.engine.training.in_lockstep.obstacles import SURE, Obstacle
from fl_lightning.engine.training.one_by_one import stops
from fl_lightning.engine.training.outcome import Outcome
from fl_lightning.seeding import derive, others_drawn, seed_globals, torch_state

MARGIN = 100  # how many times as far as a rounding error of the start may training at once lead


@dataclass(frozen=True)
class _Alone:
    """One client's training alone: its start (P,), outcome, draws of torch, all it has drawn, its batches by epoch."""

    client: int
    anchor: Tensor
    outcome: Outcome
    draws: bool
    drawn: tuple[bytes, bool]
    batches: list[list[tuple[Any, int]]]


class Trial:
    """Trains a client alone, once more alone, and in groups: from the same start and with the same random numbers.

    Args:
        groups: trains groups of clients.
        round: the round, which has begun; nothing remains of the trial.
        group_size: number of clients that train together in the fit.

    Attributes:
        seconds: the time of a batch of the client alone; infinite if no client could train.
    """

    seconds = inf

    def __init__(self, groups: Groups, round: Round, group_size: int) -> None:
        self._round = round
        self._group_size = group_size
        self._orchestrator = groups.alone.orchestrator
        self._name = type(self._orchestrator.client).__name__
        self._groups = copy(groups)
        self._groups.alone = copy(groups.alone)
        # Monitors see no client of a trial.
        self._groups.alone.hooks = Hooks(self._orchestrator, groups.alone.hooks.rules)
        self._seed = derive(self._orchestrator.seed, "compared", round.number)
        self._clients = list(round.turnout.arrived)
        self._first = self._first_that_trains()

    def hidden_state(self) -> str | None:
        """Say that a client sends something else when it trains alone a second time; None if it sends the same."""
        first = self._first
        if first is None:
            return None
        try:
            again = self._train_alone(first.client)
            distance = first.outcome.distance(again.outcome, logged=True)
        except Exception as error:
            if stops(error):
                raise
            distance = inf
        allowed = 0.0
        if self._orchestrator.device.type != "cpu":  # kernels elsewhere need not repeat themselves
            allowed = torch.finfo(first.outcome.update.dtype).eps ** SURE
        if distance <= allowed and again.drawn == first.drawn:
            return None
        sends = f"what a client of {self._name} sends differs by {distance:.1e} (relative)"
        return f"{sends} when it trains alone a second time: something beside parameters and buffers stays behind"

    def obstacle(self, pads: bool, later: bool) -> str | None:
        """Say why a client in a group differs from the same client alone; None if it differs by rounding, or not.

        Args:
            pads: whether batches are filled up.
            later: whether groups have trained before. Then a group that fails is no obstacle, since it will fail in the
                round, too, which trains its clients without filled batches, or one after another.
        """
        first = self._first
        if first is None:
            return None
        self._groups.padded = pads
        try:
            outcome = self._outcome_in_group(first)
            distance = first.outcome.distance(outcome, logged=pads)
        except Exception as error:
            if stops(error):
                raise
            if not later:
                return self._why_it_fails(error)
            if pads:
                return self.obstacle(False, later)
            return None
        return self._why_not_rounding(first, distance)

    def _outcome_in_group(self, first: _Alone) -> Outcome:
        """Train the client in a group: with itself if it draws random numbers, which others would shift."""
        most = self._group_size if self._groups.steps.is_compiled else 2  # only whole groups are compiled
        width = min(most, len(self._clients))
        if first.draws:
            return self._train_in_group([first.client] * width, first.batches)
        return self._train_in_group(self._clients[-width:])

    def _why_it_fails(self, error: Exception) -> str:
        if isinstance(error, Obstacle):
            return str(error)
        return f"{self._name}.training_step fails for several clients: {' '.join(str(error).split())[:200]}"

    def _first_that_trains(self) -> _Alone | None:
        """Train a client alone, another one if it fails; None if all do. The client is then the last of the list."""
        clients = self._clients
        for _ in list(clients):
            clients.append(clients.pop(self._seed % len(clients)))
            try:
                trained = self._train_alone(clients[-1])
            except Exception as error:
                if stops(error):
                    raise
                continue
            if is_finite(trained.outcome.update):
                return trained
        return None

    def _why_not_rounding(self, first: _Alone, distance: float) -> str | None:
        """Say that a distance is more than rounding; None if training alone carries a rounding error about as far."""
        update = first.outcome.update
        rounding = torch.finfo(update.dtype).eps
        if distance <= rounding**SURE:
            return None
        signs = torch.randint(2, update.shape, device=update.device) * 2 - 1
        moved = first.anchor + rounding * signs * (first.anchor.abs() + update.abs())
        carried = first.outcome.distance(self._train_alone(first.client, moved).outcome)
        if distance <= MARGIN * carried:
            return None
        return f"what a client of {self._name} sends differs by {distance:.1e} (relative) at once from alone"

    def _train_alone(self, client: int, start: Tensor | None = None) -> _Alone:
        """Train a client alone, from other parameters (P,) than the global model's if given."""
        alone = self._groups.alone
        round = self._round
        device = self._orchestrator.device
        seed_globals(self._seed, device)
        before = torch_state(device)
        batches = []
        for epoch in range(alone.data.counted_work(client, round.number).max_epochs):
            batches.append(list(alone.data.batches(client, round.number, epoch)))
        data_draw = torch_state(device) != before
        given = deepcopy(batches)  # a step may change its batch
        with alone.training_of(round, client, start) as run:
            seed_globals(self._seed, device)
            began = perf_counter()
            alone.local.train(run, given.__getitem__)
            finish_work(device)
            self.seconds = (perf_counter() - began) / max(1, run.global_step)
            after = torch_state(device)
            drawn = (after, others_drawn(self._seed))
            for end in alone.hooks("on_client_end"):
                end(self._orchestrator, run)
            outcome = Outcome.of(run)
        return _Alone(client, run.anchor, outcome, data_draw or after != before, drawn, batches)

    def _train_in_group(self, clients: Sequence[int], batches: list[list[tuple[Any, int]]] | None = None) -> Outcome:
        """Train clients in a group, and return the last one's outcome.

        Args:
            clients: ids of the clients.
            batches: the batches of each client by local epoch, where all draw the same numbers; None for the clients'
                own batches, where none draws any.
        """
        groups = self._groups
        round = self._round
        runs = [groups.new_row(round, client) for client in clients]
        last = runs[-1]
        runs.sort(key=lambda run: -run.work.total_batches)
        steps: Iterable[list[Part]]
        if batches is None:
            steps = groups.batches(runs)
            draws = "different"
        else:
            client_batches = islice(chain.from_iterable(batches), last.work.total_batches)
            steps = (stack_batches([batch] * len(runs)) for batch in client_batches)
            draws = "same"
        if groups.padded:
            steps = map(_by_example, steps)
        try:
            groups.train_rows(round, runs, self._seed, steps, draws)
            groups.end(round, last)
            return Outcome.of(last)
        finally:
            groups.put_back(round)


def _by_example(parts: Sequence[Part]) -> list[Part]:
    """Let all parts of a step be evaluated example by example."""
    return [part.by_example() for part in parts]
