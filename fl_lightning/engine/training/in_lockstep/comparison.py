"""The comparison that guards groups of clients: a client in a stack must send what the same client sends alone."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from fl_lightning.engine.training.in_lockstep.batches import repeated, stacked
from fl_lightning.engine.training.in_lockstep.outcome import Outcome
from fl_lightning.engine.training.in_lockstep.steps import Obstacle, StackedTraining
from fl_lightning.engine.training.in_lockstep.trainer import GroupTraining
from fl_lightning.errors import ConfigurationError, TrainingError, is_exhaustion
from fl_lightning.seeding import derive, isolated, random_states, seed_globals

SURE = 0.5  # a relative difference up to this power of the dtype's rounding is rounding
MARGIN = 100  # how many times as far as a rounding error of the start may training at once lead


def compare_group(host: GroupTraining) -> None:
    """Compare a client in a stack with the same client alone, in rounds 1, 2, 4, 8, … and in the first of a fit.

    If they differ by more than rounding, clients train one after another from the first round on.

    Args:
        host: the orchestrator, at the start of a round.

    Raises:
        TrainingError: they differ, and earlier rounds have trained clients at once.
    """
    first, round, training = host.compared == 0, host.round, host._stacked
    due = first or (round & (round - 1) == 0 and host.compared < round)
    if training is None or not due or len(host._turnout.arrived) < 2:
        return
    host.compared = round
    with isolated(host.device):
        reason = Comparison(host, training).obstacle()
    if reason is None:
        if first:
            rank_zero_info(f"clients_at_once: {host.group_size} clients train at once")
    elif host.rounds_done:
        raise TrainingError(
            f"round {round}: clients can no longer train at once, since {reason}; the rounds before trained them at "
            "once: start again with model.clients_at_once: 1"
        )
    else:
        host._stacked = None
        host.say_one_by_one(reason)


class Comparison:
    """Trains a client alone and in a stack, from the same start and with the same random numbers.

    Args:
        host: the orchestrator, at the start of a round.
        training: trains stacks of clients.
    """

    def __init__(self, host: GroupTraining, training: StackedTraining) -> None:
        self._host, self._training = host, training

    def obstacle(self) -> str | None:
        """Say why a client in a stack differs from the same client alone; None if only by rounding."""
        host = self._host
        name, seed = type(host.client).__name__, derive(host.seed, "compared", host.round)
        clients = list(host._turnout.arrived)
        for _ in clients:
            clients.append(clients.pop(seed % len(clients)))  # another one if the last one fails, also alone
            try:
                alone, draws, batches = self._alone(clients[-1], seed)
            except ConfigurationError:
                raise
            except Exception as error:
                if is_exhaustion(error):
                    raise
                continue
            if alone.is_finite:
                break
        else:
            return None
        width = min(
            host.group_size if self._training.is_compiled else 2, len(clients)
        )  # only whole groups are compiled
        chosen = [clients[-1]] * width if draws else clients[-width:]
        try:
            distance = alone.distance(self._in_stack(chosen, seed, batches if draws else None))
        except ConfigurationError:
            raise
        except Exception as error:
            if is_exhaustion(error):
                raise
            if host.rounds_done:  # groups fail in the same way, and then train one by one
                return None
            failure = f"{name}.training_step fails for several clients: {' '.join(str(error).split())[:200]}"
            return str(error) if isinstance(error, Obstacle) else failure
        rounding = torch.finfo(alone.update.dtype).eps
        if distance <= rounding**SURE:
            return None
        signs = torch.randint(2, alone.update.shape, device=alone.update.device) * 2 - 1
        moved = host._anchor + rounding * signs * (host._anchor.abs() + alone.update.abs())
        if distance <= MARGIN * alone.distance(self._alone(clients[-1], seed, moved)[0]):
            return None
        return f"what a client of {name} sends differs by {distance:.1e} (relative) at once from alone"

    def _alone(
        self, client: int, seed: int, start: Tensor | None = None
    ) -> tuple[Outcome, bool, list[list[tuple[Any, int]]]]:
        """Train a client alone; nothing remains of this.

        Args:
            client: the client's id.
            seed: the seed of the random numbers that local steps draw.
            start: (P,) the parameters to start from; the global model by default.

        Returns:
            The outcome; whether the batches or the steps drew random numbers; the client's batches by local epoch.
        """
        host = self._host
        seed_globals(seed, host.device)
        before = random_states(host.device)[0]
        epochs = range(host._counted(client, host.round).max_epochs)
        batches = [list(host._batches(client, epoch)) for epoch in epochs]
        draws = random_states(host.device)[0] != before
        given = deepcopy(batches)  # a step may change its batch
        with host.training_of(client, host._anchor if start is None else start, looking=False) as run:
            seed_globals(seed, host.device)
            host._training.train(run, given.__getitem__)
            draws |= random_states(host.device)[0] != before
            for end in host.hooks("on_client_end", looking=False):
                end(host, run)
            result = run.result(host._state.read(), None, run.loss)
            return Outcome(run.params - host._anchor, result), draws, batches

    def _in_stack(self, clients: Sequence[int], seed: int, batches: list[list[tuple[Any, int]]] | None) -> Outcome:
        """Train clients in a stack, and return the last one's outcome; nothing remains of this.

        Args:
            clients: ids of the clients.
            seed: the seed of the random numbers that local steps draw.
            batches: the batches of each client by local epoch, where all draw the same numbers; None for the clients'
                own batches, where none draws any.
        """
        host = self._host
        runs = [host._new_row(client, host._anchor) for client in clients]
        last = runs[-1]
        runs.sort(key=lambda run: -run.work.total_batches)
        each = repeated((batches or []).__getitem__, last.work.total_batches)
        try:
            same = None if batches is None else (stacked([batch] * len(runs)) for batch in each)
            group = host._train_rows(runs, seed, same, looking=False)
            row = runs.index(last)
            host._end_client(row, last, group, looking=False)
            return Outcome(last.params - host._anchor, last.result(host._buffers_of(row, group), None, last.loss))
        finally:
            host._put_back(runs)
