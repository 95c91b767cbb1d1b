"""Elsewhere: has the clients of a round trained at their sites, on other machines."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from time import monotonic

from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.round import Outgoing, Round
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.sites.messages import (
    Expected,
    Incoming,
    Message,
    pack_outgoing,
    pack_tensors,
    unpack_incoming,
)
from fl_lightning.engine.sites.sites import Sites, seconds_left
from fl_lightning.engine.training.one_by_one import KeptWay
from fl_lightning.errors import TrainingError


class Elsewhere:
    """Sends the model to the sites of a round's clients, and takes their answers, in the order in which they come.

    A client whose site is gone, does not answer in time, or answers with what does not fit, is left out of the round.
    Answers that nobody waits for are dropped: those of other clients than the site's own, second ones, and those of
    earlier rounds.

    Args:
        server: the orchestrator.
        sites: the sites, all of which the server knows by now.
    """

    at_once = False
    kept_way = KeptWay(at_once=False)

    def __init__(self, server: Server, sites: Sites) -> None:
        self._server = server
        self._sites = sites
        self.group_size = server.data.largest_cohort  # all sites train at the same time
        self._absent: set[int] = set()  # clients whose sites are gone, as has been told
        self._expected: Expected | None = None

    def train(self, round: Round, clients: Sequence[int]) -> None:
        """Have clients trained; each is taken in, or left out, when its site has answered."""
        self._expected = self._expected or Expected(self._server)
        for late in self._sites.let_back():
            self._take(round, {}, (), late)
        self._sites.wait_for(clients)
        waiting = self._send(round, clients)
        deadline = self._sites.deadline
        end = None if deadline is None else monotonic() + deadline
        while waiting:
            try:
                received = self._sites.receive(seconds_left(end))
            except TimeoutError:
                for client in list(waiting):
                    del waiting[client]
                    round.late += 1
                    round.leave_out(client, f"its site has not answered within {deadline:g} s")
                break
            if received is None:  # a site has come back
                continue
            site, message = received
            expected = [client for client in self._sites.clients_of(site) if client in waiting]
            if message is None:
                for client in expected:
                    del waiting[client]
                    round.leave_out(client, "its site is gone, and it stays away until the site comes back")
                    self._absent.add(client)
                continue
            answered = self._take(round, waiting, expected, message)
            if answered is not None:
                del waiting[answered]
                self._server.tell_trained([answered])
        self._check_enough(round, clients)

    def _send(self, round: Round, clients: Sequence[int]) -> dict[int, Outgoing]:
        """Send the model to the sites of clients; return what has been sent, by client."""
        sent: dict[int, Outgoing] = {}
        shared = None
        for client in clients:
            outgoing = round.outgoing(client)
            if outgoing.params is not shared:
                shared = outgoing.params
                params = pack_tensors({"params": shared})
            try:
                self._sites.send(client, pack_outgoing(outgoing, params, self._sites.known_at(client)))
            except OSError as error:
                round.leave_out(client, f"its site is gone: {error}", speaks=client not in self._absent)
                self._absent.add(client)
                continue
            self._absent.discard(client)
            self._sites.note_known(client, outgoing.buffers)
            sent[client] = outgoing
        return sent

    def _check_enough(self, round: Round, clients: Sequence[int]) -> None:
        arrived = len(clients) - len(round.failures)
        least = min(self._sites.min_clients, len(clients))
        if arrived < least:
            raise TrainingError(
                f"round {round.number}: {arrived} of {len(clients)} clients have answered, expected at least {least} "
                "(network.min_clients): bring the sites back, and go on from the last checkpoint (--ckpt_path last)"
            )

    def _take(
        self, round: Round, waiting: dict[int, Outgoing], expected: Sequence[int], message: Message
    ) -> int | None:
        """Take in the answer of a site for one of the clients of whom an answer is expected; return that client."""

        def sent_to(client: int) -> Buffers:
            return waiting[client].buffers if client in waiting else ()

        try:
            incoming = unpack_incoming(message, sent_to)
        except TrainingError as error:
            if not expected:
                return None
            round.leave_out(expected[0], str(error))  # a site answers for its clients in their order
            return expected[0]
        if incoming.client not in expected or incoming.number != round.number:
            warnings.warn(
                f"round {round.number}: an answer for client {incoming.client} of round {incoming.number} is dropped, "
                f"since its site is expected to answer for {list(expected) or 'no client'}",
                stacklevel=2,
            )
            return None
        self._take_in(round, waiting[incoming.client], incoming)
        return incoming.client

    def _take_in(self, round: Round, asked: Outgoing, incoming: Incoming) -> None:
        assert self._expected is not None
        try:
            self._expected.check_incoming(incoming, asked)
            self._check_size(asked.client, incoming)
        except TrainingError as error:
            round.leave_out(asked.client, str(error))
            return
        if incoming.model is None or incoming.result is None:
            round.leave_out(asked.client, incoming.reason)
            return
        round.take(incoming.model[None].to(round.anchor.device), [incoming.result], less=incoming.less)

    def _check_size(self, client: int, incoming: Incoming) -> None:
        """Refuse a client that has more or fewer examples, and so another weight, than its site has told."""
        told = int(self._server.data.sizes[client])
        if incoming.result is not None and incoming.result.num_samples != told:
            raise TrainingError(
                f"expected {told:,} training examples, as its site has told, got {incoming.result.num_samples:,}"
            )
