"""Round: the global model that goes out to the clients of a round, and what has come back from them."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Protocol

import torch
from torch import Tensor

from fl_lightning.engine.federation.cohorts import Turnout
from fl_lightning.engine.module.failures import ending
from fl_lightning.engine.module.state import Buffers, ModuleState
from fl_lightning.engine.policy import Policy
from fl_lightning.engine.rules.hooks import Hooks
from fl_lightning.engine.rules.work import Factors
from fl_lightning.engine.states.sent import is_sent
from fl_lightning.engine.updates.buffers import bad_buffers
from fl_lightning.engine.updates.cohort import ClientResult, Cohort
from fl_lightning.engine.updates.exchange import gather_results
from fl_lightning.engine.updates.updates import Summed, Updates


@dataclass(frozen=True)
class Outgoing:
    """Holds what the server sends to one client of a round, for the client to train elsewhere.

    Attributes:
        client: the client's id.
        number: the round's number, 1, 2, …
        params: (P,) the model that the client starts from; the global model, unless a rule's ``start`` makes another at
            the server.
        buffers: the buffers and frozen parameters that the client starts from.
        factors: factors on the client's learning rates; None for 1.
        loss_scale: scale and growth tracker of the GradScaler; None without one.
        states: tensors of the rules' states, by the rule's ``state_key`` and the tensor's name.
        together: the signed public keys of the sites whose answers are summed, by the sites' names; empty where the
            server gets single updates.
    """

    client: int
    number: int
    params: Tensor
    buffers: Buffers
    factors: Factors
    loss_scale: tuple[float, int] | None
    states: Mapping[str, Mapping[str, Tensor]]
    together: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class ClientsRound(Protocol):
    """Describes a round to what trains its clients: where they start, and where their results go.

    Attributes:
        number: the round's number.
        anchor: (P,) the model that the client starts from, or that a rule makes another of.
        state: the rest of that model.
        factors: factors on the clients' learning rates; None for 1.
    """

    number: int
    anchor: Tensor
    state: ModuleState
    factors: Factors

    def take(self, models: Tensor, results: Sequence[ClientResult], losses: Any = None, less: bool = False) -> None:
        """Take in what clients send; see :meth:`Round.take`."""

    def leave_out(self, client: int, reason: str, error: Exception | None = None) -> None:
        """Leave out a client whose training has failed; see :meth:`Round.leave_out`."""


class Round:
    """One round: what goes out to its clients, and what has come back.

    Args:
        number: the round's number, 1, 2, …
        anchor: (P,) the global model that all clients of the round start from.
        state: the rest of the global module.
        factors: factors on the clients' learning rates, one for each parameter group of each optimizer; None for 1.
        turnout: the selected clients that arrive, drop out, or are late.
        policy: where the updates lie, and which are left out.
        hooks: the callbacks' hooks.

    Attributes:
        trained: number of this device's clients that have trained so far, those that failed included.
        late: number of clients whose sites have not answered in time.
        skipped: why the round has no sum, though clients have answered; empty if it may have one.
        failures: messages about the clients that are left out; the first with its error, since errors hold what they
            passed.
    """

    def __init__(
        self,
        number: int,
        anchor: Tensor,
        state: ModuleState,
        factors: Factors,
        turnout: Turnout,
        policy: Policy,
        hooks: Hooks,
    ) -> None:
        self.number = number
        self.anchor = anchor
        self.state = state
        self.factors = factors
        self.turnout = turnout
        self.trained = 0
        self.late = 0
        self.skipped = ""
        self.failures: list[tuple[str, Exception | None]] = []
        self._policy = policy
        self._hooks = hooks
        self._summed = Summed(policy.store.columns) if policy.sums_after else None
        self._arrived: list[ClientResult] = []  # of this device's clients, if their updates are not yet summed
        self._unread: list[
            Tensor
        ] = []  # (3, k): signs of bad updates and of bad buffers, losses, of those that arrived
        self._added: list[ClientResult] = []  # of all devices' clients whose updates are summed
        self._untold: list[str] = []
        policy.store.clear()

    def outgoing(self, client: int) -> Outgoing:
        """Collect what goes out to a client that trains on another machine."""
        params, buffers = self._hooks.start_at_server(client, self.anchor, self.state.buffers)
        states: dict[str, dict[str, Tensor]] = {}
        for callback in self._hooks.callbacks:
            names = [name for name in callback.state if is_sent(name, callback.broadcasts, client)]
            states[callback.state_key] = {name: callback.state[name] for name in names}
        return Outgoing(client, self.number, params, buffers, self.factors, self._policy.loss_scale, states)

    def take(self, models: Tensor, results: Sequence[ClientResult], losses: Any = None, less: bool = False) -> None:
        """Take in what clients send.

        Args:
            models: (k, P) the clients' models.
            results: the values that the k clients send beside their models.
            losses: (k,) the clients' mean training losses, which the device may still compute; None if the results have
                them.
            less: whether ``models`` are updates: models less those that the clients started from.
        """
        clients = [result.client for result in results]
        signs = self._policy.store.put(clients, models, None if less else self.anchor)
        buffers = self.state.buffers
        bad = torch.zeros_like(signs)
        if buffers:
            bad = torch.stack([bad_buffers(buffers, result.buffers, signs) for result in results])
        self._arrived += results
        if losses is None:
            losses = torch.full_like(signs, math.nan)
        self._unread.append(torch.stack([signs, bad, losses]))
        self.trained += len(results)
        self.tell_failures()

    def take_sum(self, update: Tensor, weights: Tensor, results: Sequence[ClientResult]) -> None:
        """Take in the weighted mean (P,) of the updates of k clients, in place of their models.

        Args:
            update: the mean.
            weights: (k,) the clients' weights in it.
            results: the values beside the update.
        """
        self._summed = Summed.of(self._policy.store.columns, update, weights)
        self._added = list(results)
        self.trained += len(results)

    def leave_out(self, client: int, reason: str, error: Exception | None = None, speaks: bool = True) -> None:
        """Leave out a client whose training has failed.

        Args:
            client: the client's id.
            reason: why, for the message.
            error: the error that the client raised, if any.
            speaks: whether to tell it.

        Raises:
            TrainingError: the policy is to stop the run.
            RuntimeError: the policy is to stop the run, and the user's code raised the error.
        """
        self._drop(client, reason, error, speaks)
        self.trained += 1

    def _drop(self, client: int, reason: str, error: Exception | None = None, speaks: bool = True) -> None:
        """Leave a client out of the round; ``speaks`` says whether this device tells it, if it is news in this fit."""
        message = f"round {self.number}: client {self._policy.label(client)} is left out: {reason}"
        if self._policy.on_bad_update == "raise":
            raise ending(message, error) from error
        kind = (client, re.sub(r"\b\d[\d.e+-]*", "", reason))  # float32 is a word, and stays
        if speaks and kind not in self._policy.told:
            self._policy.told.add(kind)
            self._untold.append(message)
        self.failures.append((message, None if self.failures else error))

    def tell_failures(self) -> None:
        """Warn of the clients that are left out, once it is clear that not every client of the round is."""
        while self._untold:
            warnings.warn(self._untold.pop(0), stacklevel=2)

    def without_update(self) -> Exception:
        """Return the error that ends a run in which every client is left out; one line stands for all."""
        message, error = self.failures[0] if self.failures else (f"round {self.number}: no client is left", None)
        self._untold.clear()
        end = ending(f"{message}; so is every other one", error)
        end.__cause__ = error
        return end

    def sum_up(self) -> None:
        """Add the updates that have arrived on all devices to the sum, and make room for others."""
        assert self._summed is not None
        updates, results = self._gather()
        if results:
            bare = [replace(result, buffers=[]) for result in results]  # buffers are averaged at the round's end
            cohort = Cohort.collect(self.number, self.anchor, updates, bare)
            self._summed.take_in(updates, self._policy.shares(cohort))
        self._added += results

    def cohort(self) -> Cohort | None:
        """Gather the updates and the results of all devices; leave out updates that are too large.

        Returns:
            The round's cohort; None if no update has arrived.
        """
        updates: Updates | Summed
        if self._summed is not None:
            self.sum_up()
            updates, results = self._summed, self._added
        else:
            updates, results = self._gather()
        if self._policy.max_update_norm is not None and results:
            fit = self._within_limit(updates.norms, [result.client for result in results])
            updates = updates.only(fit)
            results = list(compress(results, fit))
        if not results:
            return None
        cohort = Cohort.collect(self.number, self.anchor, updates, results)
        if self._policy.knows_shares and updates.shares is None:  # gives the bits of a sum of updates as they come
            updates.shares = self._policy.shares(cohort)
        return cohort

    def _gather(self) -> tuple[Updates, list[ClientResult]]:
        """Gather the updates and results that have arrived on all devices since the last call."""
        store = self._policy.store
        own = self._read()
        results, order = gather_results(store.columns, store.slots, own, self.state.buffers, self.anchor.device)
        updates = store.hand_out(order)
        store.clear()
        return updates, results

    def _read(self) -> list[ClientResult]:
        """Fill in the losses of the clients that have arrived, and leave out what is not finite.

        Reading all values at the end waits for the device only once.
        """
        rows = torch.cat(self._unread, dim=1).T.tolist() if self._unread else []
        arrived = self._arrived
        self._arrived = []
        self._unread = []
        finite: list[ClientResult] = []
        for result, (sign, bad, loss) in zip(arrived, rows, strict=True):
            if math.isnan(sign) and not self._policy.store.is_finite(result.client):
                self._drop(result.client, "its update is not finite")
            elif bad:
                self._drop(result.client, "one of its buffers is not finite")
            else:
                finite.append(replace(result, loss=loss) if math.isnan(result.loss) else result)
        return finite

    def _within_limit(self, norms: Tensor, clients: list[int]) -> list[bool]:
        """Tell for each update's norm (K,) whether it is within the limit; leave out the clients of those above.

        There is no limit without ``max_update_norm``, or if most clients send zero.

        Raises:
            TrainingError: a norm is above the limit, and the policy is to stop the run.
        """
        multiple = self._policy.max_update_norm
        median = float(norms.median())  # of an even number the lower one, so that one of two may be left out
        if not multiple or median == 0:
            return [True] * len(clients)
        fit: list[bool] = []
        for client, norm in zip(clients, norms.tolist(), strict=True):
            is_within = norm <= multiple * median
            fit.append(is_within)
            if not is_within:
                reason = f"the norm of its update is {norm:.3g}, more than {multiple:g} times the median, {median:.3g}"
                self._drop(client, reason, speaks=self._policy.speaks)
        return fit
