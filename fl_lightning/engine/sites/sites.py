"""Sites: the sites of a federation as its server knows them: who has which client, what it told, who is there."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from time import monotonic
from typing import Any, Protocol

from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.sites.events import Answered, Came, Gone, Heard, Message
from fl_lightning.engine.sites.facts import (
    LEAST,
    READY,
    WELCOME,
    Facts,
    Start,
    Welcome,
    check_alike,
    check_examples,
    kind_of,
    pack_end,
    pack_told,
    unpack_ready,
    unpack_welcome,
)
from fl_lightning.engine.sites.messages import one_line
from fl_lightning.errors import ConfigurationError, TrainingError

LOOK = 0.5  # seconds between two looks whether the run is asked to stop


class Carrier(Protocol):
    """Carries messages between the server and its sites, each of which has a name that nobody else can take."""

    def send(self, site: str, message: Message) -> None:
        """Send a message to a site.

        Raises:
            OSError: the site is gone.
        """

    def receive(self, timeout: float) -> Heard | Gone:
        """Wait for the next message of any site, or for the end of a connection.

        Args:
            timeout: largest number of seconds to wait.

        Raises:
            TimeoutError: nothing has happened in time.
        """

    def stop(self) -> None:
        """End the connections, upon which the sites end."""


class Stage(IntEnum):
    """How far a site has come."""

    AWAY = 0
    LET_IN = 1  # it knows that it may train, and gets ready
    THERE = 2  # it can train


@dataclass
class _Place:
    """Holds what the server knows of a site.

    Attributes:
        clients: the ids of the site's clients.
        stage: how far the site has come.
        known: the buffers that the site was sent last.
        shown: the signed public key of a site that hides its answers.
    """

    clients: Sequence[int]
    stage: Stage = Stage.AWAY
    known: Buffers = ()
    shown: Mapping[str, str] = field(default_factory=dict)


class Sites:
    """Knows the sites of a federation: the clients of each, what each has told of its data, and which are there.

    A site is let in if its welcome fits: it names its own clients, has the server's settings, and, when it comes back,
    the data that it had. Others are told why they are refused. A site is there once it says that it can train.

    Args:
        carrier: carries the messages.
        clients: the ids of each site's clients, by the site's name; together 0, 1, …, N - 1.
        settings: the settings of the server's config that affect results, by dotted names.
        deadline: seconds after which a round goes on without those that have not answered; None to wait for all.
        min_clients: number of clients without which no round begins or ends.
        facts: counts of the clients' data from an earlier part of the run, which still hold, by the client's id.
        max_examples: largest number of training examples of a site; None for no limit.
        say: is called with a line for each site that comes or goes.
        stops: tells whether the run is asked to stop, upon which nothing is waited for.
        secure: whether the sites hide their answers from the server by masks, which are gone from their sum.

    Attributes:
        clients: the ids of each site's clients, by the site's name.
        fit: the name of this fit for the sites' keys; empty where they hide nothing.
        carrier: carries the messages.
        deadline: seconds after which a round goes on without those that have not answered; None to wait for all.
        min_clients: number of clients without which no round begins or ends.
        facts: counts of each client's data, as its site has told them, by the client's id.
    """

    def __init__(
        self,
        carrier: Carrier,
        clients: Mapping[str, Sequence[int]],
        settings: Mapping[str, Any] | None = None,
        deadline: float | None = None,
        min_clients: int = 1,
        facts: Mapping[int, Facts] | None = None,
        max_examples: int | None = None,
        say: Callable[[str], None] = lambda line: None,
        stops: Callable[[], bool] = lambda: False,
        secure: bool = False,
    ) -> None:
        self.clients = clients
        self.fit = secrets.token_hex(8) if secure else ""
        self.carrier = carrier
        self.deadline = deadline
        self.min_clients = min(max(min_clients, LEAST), sum(map(len, clients.values()))) if secure else min_clients
        self.facts = dict(facts or {})
        self._places = {site: _Place(own) for site, own in clients.items()}
        self._site_of = {client: site for site, own in clients.items() for client in own}
        self._settings = settings or {}
        self._max_examples = max_examples
        self._say = say
        self._stops = stops
        self._start: Message | None = None  # what those are told that come, once all are known

    def __deepcopy__(self, memo: Any) -> Sites:
        return self  # a copy of the orchestrator talks to the same sites

    def site_of(self, client: int) -> str:
        """Return the name of a client's site."""
        return self._site_of[client]

    def known_at(self, client: int) -> Buffers:
        """Return the buffers that a client's site was sent last; none if it has come since."""
        return self._places[self._site_of[client]].known

    def shown_by(self, clients: Collection[int]) -> dict[str, Mapping[str, str]]:
        """Return what the sites of clients show to one another, by the sites' names."""
        return {self._site_of[client]: self._places[self._site_of[client]].shown for client in clients}

    def note_known(self, client: int, buffers: Buffers) -> None:
        """Note which buffers a client's site has been sent."""
        self._places[self._site_of[client]].known = buffers

    def clients_of(self, site: str) -> Sequence[int]:
        """Return the ids of a site's clients; none for a stranger."""
        return self._places[site].clients if site in self._places else ()

    @property
    def missing(self) -> list[str]:
        """The names of the sites that are not there; until all are told to begin, of those that have not come."""
        least = Stage.LET_IN if self._start is None else Stage.THERE
        return [site for site, place in self._places.items() if place.stage < least]

    def _at_least(self, stage: Stage) -> list[str]:
        return sorted(site for site, place in self._places.items() if place.stage >= stage)

    def gather(self) -> None:
        """Wait for all sites; in a run that goes on, for those of ``min_clients`` clients."""
        while len(self.facts) < len(self._site_of) or self._count(self._at_least(Stage.LET_IN)) < self.min_clients:
            self._next(None)
        sizes = [self.facts[client].size for client in sorted(self.facts)]
        self._start = pack_told(Start(sizes, self._settings, fit=self.fit))
        for site in self._at_least(Stage.LET_IN):
            self._tell(site, self._start)
        end = None if self.deadline is None else monotonic() + self.deadline
        while any(place.stage is Stage.LET_IN for place in self._places.values()):
            try:
                self._next(end)
            except TimeoutError:
                break

    def _count(self, sites: Collection[str]) -> int:
        return sum(len(self._places[site].clients) for site in sites)

    def _tell(self, site: str, message: Message) -> None:
        try:
            self.carrier.send(site, message)
        except OSError:
            self._lose(site)

    def _lose(self, site: str) -> None:
        place = self._places[site]
        if place.stage > Stage.AWAY:
            self._say(f"{site} is gone")
        place.stage = Stage.AWAY
        place.known = ()

    def say_end(self, reason: str) -> None:
        """Tell the sites that the run ends before its last round, and why."""
        if self._start is None:  # sites that wait for their start wait for another server, too
            return
        for site in self._at_least(Stage.LET_IN):
            self._tell(site, pack_end(reason))

    def present(self, clients: Collection[int]) -> int:
        """Count the clients whose sites are there."""
        return sum(self._places[self._site_of[client]].stage is Stage.THERE for client in clients)

    def let_back(self) -> list[Answered]:
        """Let those in that have come back since the last round; return the answers that came too late for it."""
        late: list[Answered] = []
        try:
            while True:
                event = self._next(monotonic())
                if isinstance(event, Answered):
                    late.append(event)
        except TimeoutError:
            return late

    def wait_for(self, clients: Collection[int]) -> None:
        """Wait until enough of a round's clients are there."""
        least = min(self.min_clients, len(clients))
        if self.present(clients) < least:
            warnings.warn(
                f"waiting for sites: {least} clients must be there, and {self.present(clients)} are; missing: "
                f"{', '.join(self.missing)}",
                stacklevel=2,
            )
        while self.present(clients) < least:
            self._next(None)

    def send(self, client: int, message: Message) -> None:
        """Send a message to a client's site.

        Raises:
            OSError: the site is not there.
        """
        site = self._site_of[client]
        if self._places[site].stage < Stage.THERE:
            raise ConnectionError("it has not come back")
        try:
            self.carrier.send(site, message)
        except OSError:
            self._lose(site)
            raise

    def receive(self, end: float | None) -> Came | Gone | Answered:
        """Wait until a site can train, is gone, or answers; see :meth:`_next`."""
        while (event := self._next(end)) is None:
            pass
        return event

    def _next(self, end: float | None) -> Came | Gone | Answered | None:
        """Wait for the next word of a site; returns None for a welcome, which is answered here.

        Args:
            end: time of the monotonic clock until which to wait; None for no limit.

        Raises:
            TimeoutError: nothing has happened in time.
            StopIteration: the run is asked to stop; Lightning ends a fit with this error.
        """
        while True:
            if self._stops():
                raise StopIteration
            left = LOOK if end is None else min(LOOK, max(0.0, end - monotonic()))
            try:
                heard = self.carrier.receive(left)
            except TimeoutError:
                if end is not None and monotonic() >= end:
                    raise
                continue
            return self._take(heard)

    def _take(self, heard: Heard | Gone) -> Came | Gone | Answered | None:
        """Note where a site stands after a word of it, or after its end."""
        site = heard.site
        if isinstance(heard, Gone):
            self._lose(site)
            return heard
        kind = kind_of(heard.message)
        if kind == WELCOME:
            self._admit(heard)
            return None
        if kind is None:
            return Answered(site, heard.message)
        if kind != READY:
            reason = f"it trains, and takes no {one_line(kind)}"
            warnings.warn(f"site {heard.sender} is refused: {reason}", stacklevel=2)
            self._tell(site, pack_end(reason))
            return None
        place = self._places[site]
        if place.stage is not Stage.LET_IN:
            return None
        try:
            place.shown = unpack_ready(heard.message)
        except TrainingError as error:
            warnings.warn(f"site {site} is not taken in: {error}", stacklevel=2)
            return None
        place.stage = Stage.THERE
        return Came(site)

    def _admit(self, heard: Heard) -> None:
        """Let a site in, or tell it why not."""
        site = heard.site
        try:
            welcome = unpack_welcome(heard.message)
            self._check(site, welcome)
        except (ConfigurationError, TrainingError) as error:
            warnings.warn(f"site {heard.sender} is refused: {one_line(error)}", stacklevel=2)
            self._tell(site, pack_told(Start(settings=self._settings, reason=str(error))))
            return
        self.facts |= {fact.client: fact for fact in welcome.facts}
        place = self._places[site]
        place.stage = Stage.LET_IN
        place.known = ()
        examples = sum(fact.size for fact in welcome.facts)
        self._say(f"{site} is there: {examples:,} training examples")
        if self._start is not None:
            self._tell(site, self._start)

    def _check(self, site: str, welcome: Welcome) -> None:
        """Refuse a site that is not what its certificate says, or has other settings or data than the run."""
        own = list(self.clients_of(site))
        told = [fact.client for fact in welcome.facts]
        if welcome.site != site or told != own:
            raise ConfigurationError(
                f"expected site {site} with the clients {own}, got {welcome.site} with the clients {told}: correct "
                "network.sites, which must be the same everywhere"
            )
        check_alike(self._settings, welcome.settings, f"site {site}")
        check_examples(welcome, self._max_examples)
        for fact in welcome.facts:
            before = self.facts.get(fact.client, fact)
            if fact != before:
                raise ConfigurationError(
                    f"site {site} has other data than when the run began ({fact.size:,} training examples, and "
                    f"{before.size:,} then): bring back its data, or begin the run anew"
                )
            for other in self.facts.values():
                if other.classes != fact.classes:
                    there = self.site_of(other.client)
                    lacking = _lacking(site, fact, other) + _lacking(there, other, fact)
                    how = "; ".join(lacking) or f"{fact.classes} at {site}, {other.classes} at {there}"
                    raise ConfigurationError(
                        f"sites {site} and {there} have different classes ({how}): let the data of all sites have the "
                        "same classes in one order, those without examples too"
                    )
                if list(other.columns) != list(fact.columns):
                    raise ConfigurationError(
                        f"site {site} has the columns {fact.columns}, and site {self.site_of(other.client)} "
                        f"{other.columns}: name them in data.features, in one order, everywhere"
                    )
                if other.scaling != fact.scaling:
                    raise ConfigurationError(
                        f"site {site} scales inputs by mean and standard deviation {fact.scaling}, and site "
                        f"{self.site_of(other.client)} by {other.scaling}: set data.mean and data.std to the same "
                        "numbers everywhere"
                    )


def _lacking(site: str, fact: Facts, other: Facts) -> list[str]:
    """Say which classes a site lacks beside another one; nothing if it has all, or they have no names."""
    if not fact.class_names:
        return []
    names = [name for name in other.class_names or () if name not in fact.class_names]
    return [f"{site} lacks {', '.join(names)}"] if names else []
