"""Site: trains single clients of a server's rounds, on this machine, from what the server sends."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning.engine.module.failures import named_error
from fl_lightning.engine.module.state import Buffers, ModuleState
from fl_lightning.engine.round import Outgoing
from fl_lightning.engine.rules.work import Factors
from fl_lightning.engine.sites.events import Message
from fl_lightning.engine.sites.facts import (
    END,
    Start,
    Welcome,
    check_alike,
    check_start,
    kind_of,
    pack_ready,
    pack_told,
    unpack_end,
    unpack_start,
)
from fl_lightning.engine.sites.kept import KeepingError, Kept
from fl_lightning.engine.sites.messages import Expected, Incoming, pack_incoming, unpack_outgoing
from fl_lightning.engine.sites.secure.sums import Veil, answer_for_sum
from fl_lightning.engine.states.sent import MARK
from fl_lightning.engine.updates.cohort import ClientResult
from fl_lightning.errors import ConfigurationError, TrainingError


class Outbox:
    """Stands for the round while one of its clients trains at a site, and holds what the client sends.

    Args:
        number: the round's number.
        anchor: (P,) the model that the client starts from.
        state: the rest of that model.
        factors: factors on the client's learning rates.

    Attributes:
        incoming: the answer for the server; None while the client trains.
    """

    def __init__(self, number: int, anchor: Tensor, state: ModuleState, factors: Factors) -> None:
        self.number = number
        self.anchor = anchor
        self.state = state
        self.factors = factors
        self.incoming: Incoming | None = None

    def take(self, models: Tensor, results: Sequence[ClientResult], losses: Any = None, less: bool = False) -> None:
        """Take in what the client sends; see :meth:`Round.take`."""
        (result,) = results
        if losses is not None and math.isnan(result.loss):
            result = replace(result, loss=float(losses))
        self.incoming = Incoming(result.client, self.number, result, models[0].clone(), less)

    def leave_out(self, client: int, reason: str, error: Exception | None = None) -> None:
        """Leave out the client, whose training has failed; the reason, which may quote an example, stays here."""
        warnings.warn(f"round {self.number}: client {client} is left out: {reason}", stacklevel=2)
        self.incoming = Incoming(client, self.number, reason=reason if error is None else named_error(error))


class Connection(Protocol):
    """Carries messages between a site and the server."""

    def receive(self) -> Message | None:
        """Wait for the next message; None if the server has ended the connection, and so the run.

        Raises:
            ConnectionError: the connection is lost.
        """

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            ConnectionError: the connection is lost.
        """

    def connect_again(self, reason: str) -> None:
        """Wait until the server is there again.

        Args:
            reason: why the connection is lost, or was ended.

        Raises:
            TrainingError: the site is not to wait.
            ConfigurationError: the server refuses the site.
        """


def come(connection: Connection, welcome: Welcome, num_clients: int) -> Start:
    """Tell the server that a site is there; return what it answers, once all sites are there.

    Args:
        connection: carries the messages.
        welcome: the site's name, facts and settings.
        num_clients: N, the number of clients of all sites.

    Raises:
        ConfigurationError: the server has other settings than this site, or refuses the site.
        TrainingError: the server tells other numbers of examples than this site.
        ConnectionError: the connection is lost, or the server has ended.
    """
    connection.send(pack_told(welcome))
    message = connection.receive()
    if message is None or kind_of(message) == END:
        why = "" if message is None else f": {unpack_end(message)}"
        raise ConnectionError(f"the server has ended before it let this site in{why}")
    start = unpack_start(message)
    check_alike(welcome.settings, start.settings, "the server")
    if start.reason:
        raise ConfigurationError(f"the server refuses this site: {start.reason}")
    check_start(start, welcome, num_clients)
    return start


class Site(Callback):
    """Answers a server for the clients of this machine, in the place of rounds; put it last among a fit's callbacks.

    The fit prepares module, data and rules as any fit does, with the rules' own Lightning hooks; then the site trains
    the clients that the server names, one after another, until the server has no more. A site that loses the server, or
    whose server ends before the last round, comes again.

    Args:
        connection: carries the messages; the server has let the site in (:func:`come`).
        welcome: the site's name, facts and settings, which it tells when it comes again.
        folder: the site's own folder, of what stays here.
        say: is called with a line for each client that has trained.
        veil: hides the answers from the server, which gets their sum; None for a server that gets single ones.
    """

    def __init__(
        self,
        connection: Connection,
        welcome: Welcome,
        folder: Path,
        say: Callable[[str], None] = lambda line: None,
        veil: Veil | None = None,
    ) -> None:
        self._say = say
        self._veil = veil
        self._connection = connection
        self._welcome = welcome
        self._kept = Kept(folder)
        self._known: Buffers = ()  # of the last message

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._expected = Expected(pl_module)
        while (reason := self._answer(pl_module)) is not None:
            self._come_again(reason, pl_module)
        raise StopIteration  # with which Lightning ends a fit

    def _answer(self, server: Any) -> str | None:
        """Train what the server asks for; return why it ends before its last round, or None after that."""
        self._known = ()
        reason = None
        try:
            self._connection.send(pack_ready(None if self._veil is None else self._veil.shown))
            while (message := self._connection.receive()) is not None:
                if kind_of(message) == END:
                    reason = f"the server has ended before its last round: {unpack_end(message)}"
                else:
                    self._train(server, message)
        except ConnectionError as error:
            reason = str(error)
        return reason

    def _come_again(self, reason: str, server: Any) -> None:
        """Wait for a server that goes on with the run."""
        while True:
            self._connection.connect_again(reason)
            try:
                start = come(self._connection, self._welcome, server.data.num_clients)
            except ConnectionError as error:
                reason = str(error)
                continue
            if list(start.sizes) != server.data.sizes.tolist():
                raise ConfigurationError(
                    f"expected the server to know {server.data.sizes.tolist()} training examples, as when the run "
                    f"began, got {list(start.sizes)}: it has begun another run; join anew"
                )
            if self._veil is not None:
                self._veil.start(start.fit, start.sizes)
            self._say("the server has let this site in again")
            return

    def _train(self, server: Any, message: Message) -> None:
        """Train the client that the server asks for, and send what it answers."""
        asked = unpack_outgoing(message, self._known)
        self._known = asked.buffers
        if not server.data.has_examples(asked.client):
            raise TrainingError(f"the server asks for client {asked.client}, whose data are not at this site")
        self._expected.check_outgoing(asked)
        if self._veil is not None and (refusal := self._veil.begin(asked)):
            self._refuse(asked, refusal)
            return
        try:
            answer = self._keep(server.train_at_site(self._with_kept(asked)))
            self._expected.check_leaving(answer)
            hidden = answer if self._veil is None else self._hide(self._veil, answer, asked, server)
        except Exception as error:
            reason = named_error(error)
            if isinstance(error, KeepingError):
                reason = f"its site could not write what stays there: {error.strerror}"
            self._connection.send(pack_incoming(Incoming(asked.client, asked.number, reason=reason)))
            raise
        if hidden is None:
            return
        self._connection.send(pack_incoming(hidden, asked.buffers))
        if answer.result is not None:
            self._say(f"round {asked.number}: trained, train/loss {answer.result.loss:.4f}")

    def _hide(self, veil: Veil, answer: Incoming, asked: Outgoing, server: Any) -> Incoming | None:
        """Turn an answer into a summand that says nothing alone; return None where it cannot be summed."""
        try:
            summand = answer_for_sum(answer, asked, server, self._say)
            if summand.model is not None:
                veil.hide(summand.model, asked)
            return summand
        except TrainingError as error:
            self._refuse(asked, str(error), "its numbers cannot be summed")
            return None

    def _refuse(self, asked: Outgoing, reason: str, told: str = "") -> None:
        """Tell the server that this site does not answer for a round; ``told`` is the reason without any number."""
        warnings.warn(f"round {asked.number}: no answer is sent: {reason}", stacklevel=2)
        self._connection.send(pack_incoming(Incoming(asked.client, asked.number, reason=told or reason)))

    def _with_kept(self, asked: Outgoing) -> Outgoing:
        """Put what stays here in the place of the server's marks."""
        states: dict[str, dict[str, Tensor]] = {}
        for rule, sent in asked.states.items():
            states[rule] = {}
            for name, value in sent.items():
                own = name.removeprefix(MARK)
                states[rule][own] = value if own == name else self._kept.take(rule, own, value)
        return replace(asked, states=states)

    def _keep(self, answer: Incoming) -> Incoming:
        """Keep what stays here, and put marks in its place."""
        if answer.result is None:
            return answer
        marks: dict[tuple[str, str], Tensor] = {}
        for (rule, name), value in answer.result.stays.items():
            mark = self._kept.put(rule, f"{name}/{answer.client}", answer.number, value)
            marks[rule, f"{MARK}{name}"] = mark
        return replace(answer, result=replace(answer.result, stays=marks))
