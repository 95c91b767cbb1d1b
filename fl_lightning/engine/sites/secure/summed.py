"""SummedElsewhere: has a round's clients trained at sites that hide their answers, and takes the sum of a whole set."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

import torch

from fl_lightning.engine.round import Outgoing, Round
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.sites.elsewhere import Elsewhere
from fl_lightning.engine.sites.events import Answered, Came, Gone
from fl_lightning.engine.sites.facts import LEAST
from fl_lightning.engine.sites.messages import Expected, pack_outgoing, pack_tensors, unpack_incoming
from fl_lightning.engine.sites.secure.sums import Sum
from fl_lightning.engine.sites.sites import Sites
from fl_lightning.errors import ConfigurationError, TrainingError


class SummedElsewhere(Elsewhere):
    """Names the set of a round's clients before they train, and takes the sum of their answers, or none.

    A client whose site is not there is not in the set. If one of the set fails, the round is skipped, since the masks
    of the others hide their sum, too; nobody is asked for a second answer, which would give single updates away. Who
    has failed sits out as many rounds as it has failed so far, unless fewer than three clients were left.

    Args:
        server: the orchestrator.
        sites: the sites, all of which the server knows by now.
    """

    def __init__(self, server: Server, sites: Sites) -> None:
        super().__init__(server, sites)
        self._failures: dict[int, int] = {}  # of each client, so far
        self._rests: dict[int, int] = {}  # the last round that a client sits out
        self._without_sum: set[str] = set()  # metrics of which has been told

    def train(self, round: Round, clients: Sequence[int]) -> None:
        """Have clients trained, and take the sum of their updates."""
        self._sites.let_back()  # answers that come now are too late for their rounds
        self._sites.wait_for(clients)
        chosen = self._choose(round, clients)
        asked = self._ask(round, chosen)
        failed = self._add_up(round, asked) if len(asked) == len(chosen) else self._unreached(chosen, asked)
        if failed:
            self._skip(round, failed)

    def _choose(self, round: Round, clients: Sequence[int]) -> list[int]:
        """Return the clients whose answers are summed; leave out the others."""
        present = [client for client in clients if self._sites.present([client])]
        chosen = [client for client in present if self._rests.get(client, 0) < round.number]
        if len(chosen) < LEAST:
            chosen = present
        if len(chosen) < LEAST:
            raise TrainingError(
                f"round {round.number}: expected at least {LEAST} clients, whose updates are summed, got "
                f"{len(chosen)}: set data.participation higher, or network.secure_aggregation to false"
            )
        for client in clients:
            if client not in present:
                reason = "its site is gone, and it stays away until the site comes back"
                round.leave_out(client, reason, speaks=client not in self._absent)
            elif client not in chosen:
                round.leave_out(client, "it sits out, since a round was skipped for its site", speaks=False)
        self._absent = {client for client in clients if client not in present}
        return chosen

    def _ask(self, round: Round, chosen: Sequence[int]) -> dict[int, Outgoing]:
        """Send the model to the sites of the set, with the names and keys of all; return what was sent, by client."""
        shown = self._sites.shown_by(chosen)
        first = round.outgoing(chosen[0])
        params = pack_tensors({"params": first.params})
        asked: dict[int, Outgoing] = {}
        for client in chosen:
            outgoing = replace(round.outgoing(client), together=shown)
            if not _start_alike(outgoing, first):
                raise ConfigurationError(
                    f"a rule starts clients {chosen[0]} and {client} from different models, but secure aggregation "
                    "needs one start for all: leave the rule out, or set network.secure_aggregation to false"
                )
            message = pack_outgoing(outgoing, params, self._sites.known_at(client))
            try:
                self._sites.send(client, message)
            except OSError:
                break
            self._sites.note_known(client, outgoing.buffers)
            asked[client] = outgoing
        return asked

    def _unreached(self, chosen: Sequence[int], asked: dict[int, Outgoing]) -> dict[int, str]:
        return {chosen[len(asked)]: "its site is gone"}

    def _add_up(self, round: Round, asked: dict[int, Outgoing]) -> dict[int, str]:
        """Take the answers and their sum; return who has failed, and why, upon which there is none."""
        total = Sum(self._server, asked)  # type: ignore[arg-type]  # the orchestrator has a policy
        waiting = dict.fromkeys(asked)
        deadline = self._sites.deadline
        end = None if deadline is None else monotonic() + deadline
        while waiting:
            try:
                event = self._sites.receive(end)
            except TimeoutError:
                round.late += len(waiting)
                return dict.fromkeys(waiting, f"its site has not answered within {deadline:g} s")
            own = [client for client in self._sites.clients_of(event.site) if client in waiting]
            if not own:
                continue
            match event:
                case Came() | Gone():
                    return {own[0]: "its site is gone"}
                case Answered(_, message):
                    reason = self._add(round, total, own[0], message)
                    if reason is None:  # of an earlier round
                        continue
                    if reason:
                        return {own[0]: reason}
                    del waiting[own[0]]
                    self._server.tell_trained([own[0]])
        try:
            found = total.total()
        except TrainingError as error:
            round.skipped = str(error)
            return {}
        round.take_sum(found.update.to(round.anchor.device), found.weights, found.results)
        self._tell(round, found.dropped)
        return {}

    def _tell(self, round: Round, names: Sequence[str]) -> None:
        """Say once which metrics are not known."""
        new = [name for name in names if name not in self._without_sum]
        self._without_sum.update(new)
        if new:
            warnings.warn(
                f"round {round.number}: {', '.join(new)} has no sum, since not every site of the set has a number, or "
                "its reduction is another one than a mean or a sum",
                stacklevel=2,
            )

    def _add(self, round: Round, total: Sum, client: int, message: Sequence[bytes]) -> str | None:
        """Add an answer; return why it cannot be, nothing if it is added, and None for one that nobody waits for."""
        try:
            incoming = unpack_incoming(message)
            if incoming.client != client or incoming.number != round.number:
                return None
            if not incoming.reason:
                self._expected = self._expected or Expected(self._server)
                total.add(incoming)
                self._expected.check_names(total.named_by(incoming))
            return incoming.reason
        except TrainingError as error:
            return str(error)

    def _skip(self, round: Round, failed: dict[int, str]) -> None:
        """Leave the round without a sum, and those who have failed out of the next ones."""
        for client, reason in failed.items():
            self._failures[client] = self._failures.get(client, 0) + 1
            self._rests[client] = round.number + self._failures[client]
            round.leave_out(client, reason, speaks=False)
        named = ", ".join(self._server.data.client_label(client) for client in failed)
        reason = next(iter(failed.values()))
        round.skipped = f"client {named}: {reason}; the next round goes without, and nobody is asked a second time"


def _start_alike(one: Outgoing, other: Outgoing) -> bool:
    """Tell whether two clients start from the same model."""
    pairs = zip((one.params, *one.buffers), (other.params, *other.buffers), strict=True)
    return all(mine is its or (mine is not None and its is not None and torch.equal(mine, its)) for mine, its in pairs)
