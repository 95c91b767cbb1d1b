"""Elsewhere: has the clients of a round trained at their sites, on other machines."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol

from fl_lightning.engine.round import Outgoing, Round
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.sites.messages import Incoming, check_incoming, pack_outgoing, unpack_incoming
from fl_lightning.engine.training.one_by_one import KeptWay
from fl_lightning.errors import TrainingError


class Carrier(Protocol):
    """Carries messages between the server and the sites; a deep copy of a carrier is the carrier itself."""

    def send(self, client: int, message: bytes) -> None:
        """Send a message to a client's site.

        Raises:
            OSError: the site is gone.
        """

    def receive(self) -> tuple[Sequence[int], bytes | None]:
        """Wait for the next answer; returns the clients of the site that has sent it, and None if the site is gone."""


class Elsewhere:
    """Sends the model to the sites of a round's clients, and takes their answers, in the order in which they come.

    A client whose site is gone, or answers with what does not fit, is left out of the round. Answers that nobody waits
    for are dropped: those of other clients than the site's own, second ones, and those of earlier rounds.

    Args:
        server: the orchestrator.
        carrier: carries the messages.
    """

    at_once = False
    kept_way = KeptWay(at_once=False)

    def __init__(self, server: Server, carrier: Carrier) -> None:
        self._server = server
        self._carrier = carrier
        self.group_size = server.data.largest_cohort  # all sites train at the same time

    def train(self, round: Round, clients: Sequence[int]) -> None:
        """Have clients trained; each is taken in, or left out, when its site has answered."""
        waiting: dict[int, Outgoing] = {}
        for client in clients:
            outgoing = round.outgoing(client)
            try:
                self._carrier.send(client, pack_outgoing(outgoing))
            except OSError as error:
                round.leave_out(client, f"its site is gone: {error}")
                continue
            waiting[client] = outgoing
        while waiting:
            of_site, message = self._carrier.receive()
            expected = [client for client in of_site if client in waiting]
            if message is None:
                for client in expected:
                    del waiting[client]
                    round.leave_out(client, "its site is gone")
                continue
            answered = self._take(round, waiting, expected, message)
            if answered is not None:
                del waiting[answered]
                self._server.tell_trained([answered])

    def _take(self, round: Round, waiting: dict[int, Outgoing], expected: Sequence[int], message: bytes) -> int | None:
        """Take in the answer of a site for one of the clients of whom an answer is expected; return that client."""
        try:
            incoming = unpack_incoming(message)
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
        if incoming.ends:
            label = self._server.data.client_label(asked.client)
            raise TrainingError(f"round {round.number}: the site of client {label} ends the run: {incoming.reason}")
        try:
            check_incoming(incoming, asked)
        except TrainingError as error:
            round.leave_out(asked.client, str(error))
            return
        if incoming.model is None or incoming.result is None:
            round.leave_out(asked.client, incoming.reason)
            return
        round.take(incoming.model[None].to(round.anchor.device), [incoming.result], less=incoming.less)
