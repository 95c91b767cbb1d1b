"""Groups: trains several clients of a round at once, as the rows of one matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fl_lightning.engine.devices.strategy import busy
from fl_lightning.engine.federation.batches import Rows
from fl_lightning.engine.module.state import ModuleState
from fl_lightning.engine.round import Round
from fl_lightning.engine.rules.callback import SENT_HOOKS
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.training.in_lockstep import obstacles
from fl_lightning.engine.training.in_lockstep.batches import (
    Part,
    are_alike,
    batches_by_step,
    gather_steps,
    stack_batches,
)
from fl_lightning.engine.training.in_lockstep.stacked_run import StackedRun
from fl_lightning.engine.training.in_lockstep.steps import StackedTraining
from fl_lightning.engine.training.one_by_one import OneByOne, stops
from fl_lightning.engine.updates.cohort import ClientResult
from fl_lightning.seeding import derive, others_drawn, seed_globals


class Groups:
    """Trains a group of clients at once, with the rules' hooks for each of them, and puts the global model back.

    Args:
        alone: trains one client after another.
        compiled: whether ``torch.compile`` compiles the steps of whole groups.

    Attributes:
        steps: takes the local steps.
        padded: whether batches of different sizes are evaluated together, example by example; None for undecided.
    """

    padded: bool | None = None

    def __init__(self, alone: OneByOne, compiled: bool) -> None:
        self.alone = alone
        self.steps = StackedTraining(alone.local, compiled)
        # Whether the batches of several clients may be gathered and go through the hooks together.
        self._in_rows = alone.orchestrator.hooks_by_example

    def train(self, round: Round, clients: Sequence[int]) -> Exception | None:
        """Train a group of clients at once; return an error in their steps, which training one by one will name."""
        error = self._train(round, clients)
        if error and self.padded:
            unpadded = copy(self)
            unpadded.padded = False
            return unpadded._train(round, clients)
        return error

    def _train(self, round: Round, clients: Sequence[int]) -> Exception | None:
        orchestrator = self.alone.orchestrator
        labels = ", ".join(map(self.alone.data.datamodule.client_label, clients[:3]))
        busy(orchestrator.trainer, f"clients {labels}, … of round {round.number}")
        runs = [self.new_row(round, client) for client in clients]
        try:
            try:
                weights = self.train_rows(round, runs, derive(orchestrator.seed, "group", round.number, clients[0]))
            except Exception as error:
                if stops(error):
                    raise
                return error
            self._hand_in(round, runs, weights)
            orchestrator.tell_trained(clients)
        finally:
            self.put_back(round)
        return None

    def new_row(self, round: Round, client: int) -> LocalRun:
        """Make the run of a client that trains in a group, whose batches the data module counts."""
        return self.alone.new_run(round, client, self.alone.data.counted_work(client, round.number))

    def train_rows(
        self, round: Round, runs: Sequence[LocalRun], seed: int, batches: Any = None, draws: Any = "different"
    ) -> Tensor:
        """Train clients as the rows of a stack.

        Args:
            round: the round.
            runs: the clients' runs, those with most steps first.
            seed: the seed of the random numbers that local steps draw.
            batches: the batches of each step; by default the clients' own.
            draws: whether clients draw the "same" numbers or "different" ones.

        Returns:
            (N, P) the clients' models.

        Raises:
            Obstacle: the steps have effects beside their gradients, or draw other random numbers than torch's.
        """
        module = self.alone.orchestrator.client
        shown = self.alone.local.trainer
        optimizer = self.steps.start(runs, round.factors)
        self._start(round, runs)
        # Rules may add hooks of their own to the module when a client starts.
        state = ModuleState(module, round.state) if round.state.is_changed() else round.state
        group = StackedRun(runs, optimizer, draws)
        shown.begin(runs[0], logs=group)
        seed_globals(seed, self.alone.orchestrator.device)
        shown.asked.clear()
        self.steps.train(group, self.batches(runs) if batches is None else batches)
        obstacles.clear(obstacles.of_steps(module, shown.asked, others_drawn(seed), state.is_changed()))
        return optimizer.weights

    def put_back(self, round: Round) -> None:
        """Put the global model back after a group."""
        self.alone.local.end(None)
        self.alone.put_back(round)

    def _start(self, round: Round, runs: Sequence[LocalRun]) -> None:
        """Call the hooks at the clients' starts, if there are any."""
        orchestrator = self.alone.orchestrator
        hooks = self.alone.hooks
        if hooks.defines("on_client_start"):
            for run in runs:
                self.alone.enter(run)
                self.alone.local.trainer.begin(run)
                seed_globals(derive(orchestrator.seed, "client", run.round, run.client), orchestrator.device)
                for start in hooks("on_client_start"):
                    start(orchestrator, run)
        if runs[0].start_buffers is not None:
            orchestrator.params.copy_(round.anchor)
            round.state.write(round.state.buffers)
            for run in runs:
                run.kept["anchor"] = run.anchor

    def _hand_in(self, round: Round, runs: Sequence[LocalRun], weights: Tensor) -> None:
        """Call the hooks at the clients' ends, if there are any, and give the round what the clients send.

        Args:
            round: the round.
            runs: the clients' runs.
            weights: (N, P) the clients' models.
        """
        hooks = self.alone.hooks
        if not hooks.defines("on_client_end", *SENT_HOOKS):
            round.take(weights, [run.result() for run in runs])
            return
        rows: list[int] = []  # of the clients that do not fail
        updates: list[Tensor] = []  # either all clients send an update or none does
        results: list[ClientResult] = []
        for row, run in enumerate(runs):
            with self.alone.leaving_out(round, run.client):
                if hooks.defines("on_client_end"):
                    self.end(round, run)
                update, result = self.alone.collect(round, run)
                rows.append(row)
                results.append(result)
                if update is not None:
                    updates.append(update)
        if updates:
            round.take(torch.stack(updates), results, less=True)
        elif len(rows) == len(runs):
            round.take(weights, results)
        elif rows:
            round.take(weights[rows], results)

    def end(self, round: Round, run: LocalRun) -> None:
        """Call the hooks at a client's end, when the module holds the client's model."""
        orchestrator = self.alone.orchestrator
        orchestrator.params.copy_(run.params)
        round.state.write(run.buffers)
        self.alone.local.trainer.begin(run)
        try:
            for end in self.alone.hooks("on_client_end"):
                end(orchestrator, run)
        finally:
            round.state.write(round.state.buffers)

    def batches(self, runs: Sequence[LocalRun]) -> Iterable[list[Part]]:
        """Make the batches of each step of a group.

        From data in memory, the batches of all clients are gathered at once, and go through the hooks together.
        """
        steps = [run.work.total_batches for run in runs]
        rows = self._rows_in_memory(runs)
        if rows is not None:
            width_of = partial(self.steps.width_of, len(runs))
            return gather_steps(self.alone.orchestrator.prepare_batch, rows, steps, width_of, bool(self.padded))
        sequences = [self._batches_of(run) for run in runs]
        return map(stack_batches, batches_by_step(sequences, steps))

    def _rows_in_memory(self, runs: Sequence[LocalRun]) -> list[Rows] | None:
        """Find the rows that the clients take of datasets in memory; None where they cannot be gathered at once."""
        if not self._in_rows:
            return None
        rows_of_clients: list[Rows] = []
        for run in runs:
            rows = self.alone.data.rows(run.client, run.round, run.work.max_epochs)
            if rows is None:
                return None
            rows_of_clients.append(rows)
        first = rows_of_clients[0]
        if not all(are_alike(rows.dataset, first.dataset) for rows in rows_of_clients):
            return None
        return rows_of_clients

    def _batches_of(self, run: LocalRun) -> Iterator[tuple[Any, int]]:
        """Yield the batches of one client's local epochs, one after another."""
        for epoch in range(run.work.max_epochs):
            yield from self.alone.data.batches(run.client, run.round, epoch)
