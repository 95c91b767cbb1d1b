"""Sites: the sites of a federation as its server knows them: who has which client, what it told, who is there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Any, Protocol

from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.sites.facts import (
    READY,
    WELCOME,
    Facts,
    Start,
    Welcome,
    check_alike,
    kind_of,
    pack_end,
    pack_told,
    unpack_welcome,
)
from fl_lightning.engine.sites.messages import Message
from fl_lightning.errors import ConfigurationError, TrainingError


class Carrier(Protocol):
    """Carries messages between the server and its sites, each of which has a name that nobody else can take."""

    def send(self, site: str, message: Message) -> None:
        """Send a message to a site.

        Raises:
            OSError: the site is gone.
        """

    def receive(self, timeout: float | None) -> tuple[str, Message | None]:
        """Wait for the next message; returns the site that has sent it, and what it says of itself.

        In the place of a message, None says that the site is gone, and an empty one that it was only silent, and is
        heard again.

        Args:
            timeout: largest number of seconds to wait; None for no limit.

        Raises:
            TimeoutError: no message has come in time.
        """

    def stop(self) -> None:
        """End the connections, upon which the sites end."""


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
        say: is called with a line for each site that comes or goes.

    Attributes:
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
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.carrier = carrier
        self.deadline = deadline
        self.min_clients = min_clients
        self.facts = dict(facts or {})
        self._clients = clients
        self._site_of = {client: site for site, own in clients.items() for client in own}
        self._settings = settings or {}
        self._say = say
        self._let_in: set[str] = set()  # those that may train, and are not gone
        self._there: set[str] = set()  # those of them that can train
        self._known: dict[str, Buffers] = {}  # the buffers that each site was sent last
        self._silent: set[str] = set()  # those that were there, and may only be silent
        self._start: Message | None = None  # what those are told that come, once all are known

    def __deepcopy__(self, memo: Any) -> Sites:
        return self  # a copy of the orchestrator talks to the same sites

    def site_of(self, client: int) -> str:
        """Return the name of a client's site."""
        return self._site_of[client]

    def known_at(self, client: int) -> Buffers:
        """Return the buffers that a client's site was sent last; none if it has come since."""
        return self._known.get(self._site_of[client], ())

    def note_known(self, client: int, buffers: Buffers) -> None:
        """Note which buffers a client's site has been sent."""
        self._known[self._site_of[client]] = buffers

    def clients_of(self, site: str) -> Sequence[int]:
        """Return the ids of a site's clients; none for a stranger."""
        return self._clients.get(site, ())

    @property
    def missing(self) -> list[str]:
        """The names of the sites that are not there."""
        return [site for site in self._clients if site not in self._there]

    def gather(self) -> None:
        """Wait for all sites; in a run that goes on, for those of ``min_clients`` clients."""
        while len(self.facts) < len(self._site_of) or self._count(self._let_in) < self.min_clients:
            self.receive(None)
        sizes = [self.facts[client].size for client in sorted(self.facts)]
        self._start = pack_told(Start(sizes, self._settings))
        for site in sorted(self._let_in):
            self._tell(site, self._start)
        end = None if self.deadline is None else monotonic() + self.deadline
        while self._let_in - self._there:
            try:
                self.receive(seconds_left(end))
            except TimeoutError:
                break

    def _count(self, sites: Collection[str]) -> int:
        return sum(len(self._clients[site]) for site in sites)

    def _tell(self, site: str, message: Message) -> None:
        try:
            self.carrier.send(site, message)
        except OSError:
            self._lose(site)

    def _lose(self, site: str) -> None:
        if site in self._let_in:
            self._say(f"{site} is gone")
        if site in self._there:
            self._silent.add(site)
        self._known.pop(site, None)
        self._let_in.discard(site)
        self._there.discard(site)

    def _hear_again(self, site: str) -> None:
        if site in self._silent:
            self._say(f"{site} is heard again")
            self._silent.discard(site)
            self._let_in.add(site)
            self._there.add(site)

    def say_end(self, reason: str) -> None:
        """Tell the sites that the run ends before its last round, and why."""
        for site in sorted(self._let_in):
            self._tell(site, pack_end(reason))

    def present(self, clients: Collection[int]) -> int:
        """Count the clients whose sites are there."""
        return sum(self._site_of[client] in self._there for client in clients)

    def let_back(self) -> list[Message]:
        """Let those in that have come back since the last round; return the answers that came too late for it."""
        late: list[Message] = []
        try:
            while True:
                _, message = self.receive(0) or ("", None)
                if message is not None:
                    late.append(message)
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
            self.receive(None)

    def send(self, client: int, message: Message) -> None:
        """Send a message to a client's site.

        Raises:
            OSError: the site is not there.
        """
        site = self._site_of[client]
        if site not in self._there:
            raise ConnectionError("it has not come back")
        try:
            self.carrier.send(site, message)
        except OSError:
            self._lose(site)
            raise

    def receive(self, timeout: float | None) -> tuple[str, Message | None] | None:
        """Wait for the next message; returns None if a site has come or come back, or has said that it can train.

        Raises:
            TimeoutError: no message has come in time.
        """
        site, message = self.carrier.receive(timeout)
        if message is None:
            self._lose(site)
            return site, None
        if not message:
            self._hear_again(site)
            return None
        kind = kind_of(message)
        if kind == WELCOME:
            self._admit(site, message)
        elif kind == READY:
            if site in self._let_in:
                self._there.add(site)
        else:
            return site, message
        return None

    def _admit(self, site: str, message: Message) -> None:
        """Let a site in, or tell it why not."""
        try:
            welcome = unpack_welcome(message)
            self._check(site, welcome)
        except (ConfigurationError, TrainingError) as error:
            warnings.warn(f"site {site} is refused: {error}", stacklevel=2)
            self._tell(site, pack_told(Start(settings=self._settings, reason=str(error))))
            return
        self.facts |= {fact.client: fact for fact in welcome.facts}
        self._let_in.add(site)
        self._there.discard(site)  # until it can train
        self._known.pop(site, None)
        self._silent.discard(site)
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
        for fact in welcome.facts:
            before = self.facts.get(fact.client, fact)
            if fact != before:
                raise ConfigurationError(
                    f"site {site} has other data than when the run began ({fact.size:,} training examples, and "
                    f"{before.size:,} then): bring back its data, or begin the run anew"
                )
            for other in self.facts.values():
                if other.classes != fact.classes:
                    raise ConfigurationError(
                        f"site {site} has the classes {fact.classes}, and site {self.site_of(other.client)} "
                        f"{other.classes}: let the data of all sites have the same classes, those without examples too"
                    )
                if other.scaling != fact.scaling:
                    raise ConfigurationError(
                        f"site {site} scales inputs by mean and standard deviation {fact.scaling}, and site "
                        f"{self.site_of(other.client)} by {other.scaling}: set data.mean and data.std to the same "
                        "numbers everywhere"
                    )


def seconds_left(end: float | None) -> float | None:
    """Return the seconds that are left until a time of the monotonic clock; None without an end."""
    return None if end is None else max(0.0, end - monotonic())
