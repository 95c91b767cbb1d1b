"""Elsewhere: has the clients of a round trained at their sites, on other machines."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from time import monotonic

from torch import Tensor

from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.round import Outgoing, Round
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.sites.events import Answered, Came, Gone
from fl_lightning.engine.sites.messages import Expected, Incoming, pack_outgoing, pack_tensors, unpack_incoming
from fl_lightning.engine.sites.sites import Sites
from fl_lightning.engine.training.one_by_one import KeptWay
from fl_lightning.errors import TrainingError


class Elsewhere:
    """Sends the model to the sites of a round's clients, and takes their answers, in the order in which they come.

    A client that does not answer in time, or with what does not fit, is left out of the round. So is one whose site is
    gone when the others have answered; a site that comes back before gets the round again. With fewer than
    ``min_clients`` clients, a round waits for those that are gone, too, until its deadline. Answers that nobody waits
    for are dropped: those of other clients than the site's own, second ones, and those of earlier rounds.

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
        self._expected: Expected | None = None  # until the first round

    def train(self, round: Round, clients: Sequence[int]) -> None:
        """Have clients trained; each is taken in, or left out, when its site has answered."""
        self._expected = self._expected or Expected(self._server)
        for late in self._sites.let_back():
            self._take(round, {}, late)
        self._sites.wait_for(clients)
        asked = _Asked(round, self._sites)
        asked.send(clients)
        deadline = self._sites.deadline
        end = None if deadline is None else monotonic() + deadline
        least = min(self._sites.min_clients, len(clients))
        says_so = True
        while asked.waiting or asked.gone:
            answered = len(clients) - len(asked.waiting) - len(asked.gone) - len(round.failures)
            if not asked.waiting:
                if answered >= least:
                    break
                if says_so:
                    self._say_that_it_waits(round, asked, least - answered)
                    says_so = False
            try:
                event = self._sites.receive(end)
            except TimeoutError:
                break
            match event:
                case Came(site):
                    asked.send([client for client in self._sites.clients_of(site) if client in asked.gone])
                case Gone(site):
                    asked.lose(site)
                case Answered():
                    self._take(round, asked.waiting, event)
        for client in asked.waiting:
            round.late += 1
            round.leave_out(client, f"its site has not answered within {deadline:g} s")
        for client in asked.gone:
            reason = "its site is gone, and it stays away until the site comes back"
            round.leave_out(client, reason, speaks=client not in self._absent)
        self._absent = set(asked.gone)
        self._check_enough(round, clients)

    def _say_that_it_waits(self, round: Round, asked: _Asked, count: int) -> None:
        missing = ", ".join(sorted({self._sites.site_of(client) for client in asked.gone}))
        warnings.warn(
            f"round {round.number} waits for {count} more of the sites that are gone ({missing}), until its deadline",
            stacklevel=2,
        )

    def _check_enough(self, round: Round, clients: Sequence[int]) -> None:
        arrived = len(clients) - len(round.failures)
        least = min(self._sites.min_clients, len(clients))
        if arrived < least:
            go_on = "begin again" if round.number == 1 else "go on from the last checkpoint (--ckpt_path last)"
            raise TrainingError(
                f"round {round.number}: {arrived} of {len(clients)} clients have answered, expected at least {least} "
                f"(network.min_clients): the lines above and those at the sites say why; mend that, and {go_on}"
            )

    def _take(self, round: Round, waiting: dict[int, Outgoing], answer: Answered) -> None:
        """Take in the answer of a site for one of the clients of whom an answer is expected."""
        expected = [client for client in self._sites.clients_of(answer.site) if client in waiting]

        def sent_to(client: int) -> Buffers:
            return waiting[client].buffers if client in waiting else ()

        try:
            incoming = unpack_incoming(answer.message, sent_to)
        except TrainingError as error:
            if expected:
                client = expected[0]  # a site answers for its clients in their order
                del waiting[client]
                round.leave_out(client, str(error))
            return
        if incoming.client not in expected or incoming.number != round.number:
            warnings.warn(
                f"round {round.number}: an answer for client {incoming.client} of round {incoming.number} is dropped, "
                f"since its site is expected to answer for {list(expected) or 'no client'}",
                stacklevel=2,
            )
            return
        self._take_in(round, waiting.pop(incoming.client), incoming)
        self._server.tell_trained([incoming.client])

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


class _Asked:
    """Knows the clients of a round that have yet to answer.

    Args:
        round: the round.
        sites: the sites.

    Attributes:
        waiting: the models that were sent, by the clients that have yet to answer.
        gone: the clients whose sites are gone, and who have not answered.
    """

    def __init__(self, round: Round, sites: Sites) -> None:
        self.waiting: dict[int, Outgoing] = {}
        self.gone: dict[int, None] = {}  # a dict, for its order
        self._round = round
        self._sites = sites
        self._packed: tuple[Tensor, bytes] | None = None  # parameters, which most clients share, and their bytes

    def send(self, clients: Sequence[int]) -> None:
        """Send the model to the sites of clients."""
        for client in clients:
            outgoing = self._round.outgoing(client)
            if self._packed is None or self._packed[0] is not outgoing.params:
                self._packed = outgoing.params, pack_tensors({"params": outgoing.params})
            message = pack_outgoing(outgoing, self._packed[1], self._sites.known_at(client))
            try:
                self._sites.send(client, message)
            except OSError:
                self.gone[client] = None
                continue
            self.gone.pop(client, None)
            self._sites.note_known(client, outgoing.buffers)
            self.waiting[client] = outgoing

    def lose(self, site: str) -> None:
        """Note that a site is gone."""
        for client in self._sites.clients_of(site):
            if self.waiting.pop(client, None) is not None:
                self.gone[client] = None
