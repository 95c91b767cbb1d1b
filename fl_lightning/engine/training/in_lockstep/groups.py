"""Groups: trains several clients of a round at once, as the rows of one matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from functools import partial
from itertools import chain
from typing import Any

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning.engine.devices.strategy import busy
from fl_lightning.engine.federation.clients import TRANSFER_HOOKS
from fl_lightning.engine.module.state import ModuleState
from fl_lightning.engine.round import Round
from fl_lightning.engine.rules.callback import SENT_HOOKS
from fl_lightning.engine.rules.declared import declares
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.training.in_lockstep import obstacles
from fl_lightning.engine.training.in_lockstep.batches import Part, alike, gathered, in_lockstep, stacked
from fl_lightning.engine.training.in_lockstep.stacked_run import StackedRun
from fl_lightning.engine.training.in_lockstep.steps import StackedTraining
from fl_lightning.engine.training.one_by_one import OneByOne, stops
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
        self.alone, self.steps = alone, StackedTraining(alone.local, compiled)
        own = any(is_overridden(hook, alone.server.client) for hook in TRANSFER_HOOKS)
        by_example = not own and declares(alone.data.module, "by_example", TRANSFER_HOOKS)
        # Whether the batches of several clients may be gathered and go through the hooks together.
        self._in_rows = alone.server.batches_ready or by_example

    def train(self, round: Round, clients: Sequence[int]) -> Exception | None:
        """Train a group of clients at once; return an error in their steps, which training one by one will name."""
        error = self._train(round, clients)
        if error and self.padded:
            unpadded = copy(self)
            unpadded.padded = False
            return unpadded._train(round, clients)
        return error

    def _train(self, round: Round, clients: Sequence[int]) -> Exception | None:
        server, label = self.alone.server, self.alone.data.module.client_label
        busy(server.trainer, f"clients {', '.join(map(label, clients[:3]))}, … of round {round.number}")
        runs = [self.new_row(round, client) for client in clients]
        try:
            try:
                weights = self.train_rows(round, runs, derive(server.seed, "group", round.number, clients[0]))
            except Exception as error:
                if stops(error):
                    raise
                return error
            if done := self._end_all(round, runs):
                updates = [update for update, _ in done.values() if update is not None]
                sent = torch.stack(updates) if updates else weights[list(done)] if len(done) < len(runs) else weights
                round.take(sent, [result for _, result in done.values()], less=bool(updates))
            round.trained += len(runs)
        finally:
            self.put_back(round)
        return None

    def new_row(self, round: Round, client: int) -> LocalRun:
        """Make the run of a client that trains in a group, whose batches the data module counts."""
        return self.alone.new_run(round, client, self.alone.data.counted(client, round.number))

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
        client, device, shown = self.alone.server.client, self.alone.server.device, self.alone.local.trainer
        optimizer = self.steps.start(runs, round.factors)
        self._start(round, runs)
        # Rules may add hooks of their own to the module when a client starts.
        state = ModuleState(client) if round.state.is_changed() else round.state
        group = StackedRun(runs, optimizer, draws)
        shown.begin(runs[0], logs=group)
        seed_globals(seed, device)
        shown.asked.clear()
        self.steps.train(group, self.batches(runs) if batches is None else batches)
        obstacles.clear(obstacles.of_steps(client, shown.asked, others_drawn(seed), state.is_changed()))
        return optimizer.weights

    def put_back(self, round: Round) -> None:
        """Put the global model back after a group."""
        self.alone.local.end(None)
        self.alone.put_back(round)

    def _start(self, round: Round, runs: Sequence[LocalRun]) -> None:
        server, hooks = self.alone.server, self.alone.hooks
        for run in runs if hooks.defines("on_client_start") else ():
            self.alone.enter(run)
            self.alone.local.trainer.begin(run)
            seed_globals(derive(server.seed, "client", run.round, run.client), server.device)
            for start in hooks("on_client_start"):
                start(server, run)
        if runs[0].start_buffers is not None:
            server.params.copy_(round.anchor)
            round.state.write(round.state.buffers)
            for run in runs:
                run.kept["anchor"] = run.anchor

    def _end_all(self, round: Round, runs: Sequence[LocalRun]) -> dict[int, Any]:
        """Call the hooks at the clients' ends, if there are any.

        Returns:
            The rows of the clients that do not fail, each with what :meth:`OneByOne.sent` returns.
        """
        if not self.alone.hooks.defines("on_client_end", *SENT_HOOKS):
            return {row: (None, run.result()) for row, run in enumerate(runs)}
        done = dict[int, Any]()
        for row, run in enumerate(runs):
            with self.alone.leaving_out(round, run.client):
                if self.alone.hooks.defines("on_client_end"):
                    self.end(round, run)
                done[row] = self.alone.sent(round, run)
        return done

    def end(self, round: Round, run: LocalRun) -> None:
        """Call the hooks at a client's end, when the module holds the client's model."""
        server, hooks = self.alone.server, self.alone.hooks
        server.params.copy_(run.params)
        round.state.write(run.buffers)
        self.alone.local.trainer.begin(run)
        try:
            for end in hooks("on_client_end"):
                end(server, run)
        finally:
            round.state.write(round.state.buffers)

    def batches(self, runs: Sequence[LocalRun]) -> Iterable[list[Part]]:
        """Make the batches of each step of a group.

        From data in memory, the batches of all clients are gathered at once, and go through the hooks together.
        """
        data, steps = self.alone.data, [run.work.total_batches for run in runs]
        if self._in_rows:
            found = [data.rows(run.client, run.round, run.work.max_epochs) for run in runs]
            rows = [each for each in found if each is not None]
            if len(rows) == len(runs) and all(alike(each.dataset, rows[0].dataset) for each in rows):
                form = partial(self.steps.form, len(runs))
                return gathered(self.alone.server.prepare_batch, rows, steps, form, bool(self.padded))
        epochs = [map(partial(data.batches, run.client, run.round), range(run.work.max_epochs)) for run in runs]
        return map(stacked, in_lockstep(list(map(chain.from_iterable, epochs)), steps))
