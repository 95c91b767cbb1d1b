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
from fl_lightning.engine.training.in_lockstep.batches import Part, stacked
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
        seconds: the time of a batch of the client alone; 0 if no client could train.
    """

    seconds = 0.0

    def __init__(self, groups: Groups, round: Round, group_size: int) -> None:
        self._round, self._group_size, self._server = round, group_size, groups.alone.server
        self._name = type(self._server.client).__name__
        self._groups, self._groups.alone = copy(groups), copy(groups.alone)
        self._groups.alone.hooks = Hooks(self._server, groups.alone.hooks.rules)  # monitors see no client of a trial
        self._seed = derive(self._server.seed, "compared", round.number)
        self._clients = list(round.turnout.arrived)
        self._first = self._first_that_trains()

    def hidden(self) -> str | None:
        """Say that a client sends something else when it trains alone a second time; None if it sends the same."""
        if (first := self._first) is None:
            return None
        try:
            again = self._alone(first.client)
            distance = first.outcome.distance(again.outcome, logged=True)
        except Exception as error:
            if stops(error):
                raise
            distance = inf
        rounding = torch.finfo(first.outcome.update.dtype).eps ** SURE
        allowed = 0.0 if self._server.device.type == "cpu" else rounding  # kernels elsewhere need not repeat themselves
        if distance <= allowed and again.drawn == first.drawn:
            return None
        sends = f"what a client of {self._name} sends differs by {distance:.1e} (relative)"
        return f"{sends} when it trains alone a second time: something beside parameters and buffers stays behind"

    def obstacle(self, pads: bool, later: bool) -> str | None:
        """Say why a client in a group, with batches filled up or not, differs from the same client alone.

        None says that it differs by rounding, or that groups, which have trained ``later``, will fail, too.
        """
        if (alone := self._first) is None:
            return None
        # Only whole groups are compiled.
        width = min(self._group_size if self._groups.steps.is_compiled else 2, len(self._clients))
        chosen, self._groups.padded = [alone.client] * width if alone.draws else self._clients[-width:], pads
        try:
            found = self._in_group(chosen, alone.batches if alone.draws else None)
            distance = alone.outcome.distance(found, pads)
        except Exception as error:
            if stops(error):
                raise
            if later:  # batches are then not filled up, or clients train one after another
                return self.obstacle(False, later) if pads else None
            if isinstance(error, Obstacle):
                return str(error)
            return f"{self._name}.training_step fails for several clients: {' '.join(str(error).split())[:200]}"
        return self._judged(alone, distance)

    def _first_that_trains(self) -> _Alone | None:
        """Train a client alone, another one if it fails; None if all do. The client is then the last of the list."""
        clients = self._clients
        for _ in list(clients):
            clients.append(clients.pop(self._seed % len(clients)))
            try:
                alone = self._alone(clients[-1])
            except Exception as error:
                if stops(error):
                    raise
                continue
            if is_finite(alone.outcome.update):
                return alone
        return None

    def _judged(self, alone: _Alone, distance: float) -> str | None:
        """Say that a distance is more than rounding, which is as far as training alone carries a rounding error."""
        update = alone.outcome.update
        rounding = torch.finfo(update.dtype).eps
        if distance <= rounding**SURE:
            return None
        signs = torch.randint(2, update.shape, device=update.device) * 2 - 1
        moved = alone.anchor + rounding * signs * (alone.anchor.abs() + update.abs())
        if distance <= MARGIN * alone.outcome.distance(self._alone(alone.client, moved).outcome):
            return None
        return f"what a client of {self._name} sends differs by {distance:.1e} (relative) at once from alone"

    def _alone(self, client: int, start: Tensor | None = None) -> _Alone:
        """Train a client alone, from other parameters (P,) than the global model's if given."""
        alone, round, device = self._groups.alone, self._round, self._server.device
        seed_globals(self._seed, device)
        before = torch_state(device)
        epochs = range(alone.data.counted(client, round.number).max_epochs)
        batches = [list(alone.data.batches(client, round.number, epoch)) for epoch in epochs]
        draws = torch_state(device) != before
        given = deepcopy(batches)  # a step may change its batch
        with alone.training_of(round, client, start) as run:
            seed_globals(self._seed, device)
            began = perf_counter()
            alone.local.train(run, given.__getitem__)
            finish_work(device)
            self.seconds = (perf_counter() - began) / max(1, run.global_step)
            after = torch_state(device)
            drawn = after, others_drawn(self._seed)
            for end in alone.hooks("on_client_end"):
                end(self._server, run)
            outcome = Outcome.of(run)
        return _Alone(client, run.anchor, outcome, draws or after != before, drawn, batches)

    def _in_group(self, clients: Sequence[int], batches: list[list[tuple[Any, int]]] | None) -> Outcome:
        """Train clients in a group, and return the last one's outcome.

        Args:
            clients: ids of the clients.
            batches: the batches of each client by local epoch, where all draw the same numbers; None for the clients'
                own batches, where none draws any.
        """
        groups, round = self._groups, self._round
        runs = [groups.new_row(round, client) for client in clients]
        last = runs[-1]
        runs.sort(key=lambda run: -run.work.total_batches)
        steps: Iterable[list[Part]] = groups.batches(runs)
        if batches is not None:
            each = islice(chain.from_iterable(batches), last.work.total_batches)
            steps = (stacked([batch] * len(runs)) for batch in each)
        if groups.padded:
            steps = ([part.by_example() for part in parts] for parts in steps)
        try:
            groups.train_rows(round, runs, self._seed, steps, "different" if batches is None else "same")
            groups.end(round, last)
            return Outcome.of(last)
        finally:
            groups.put_back(round)
