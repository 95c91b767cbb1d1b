"""Survey: a server asks its sites for the statistics of their data, before they train."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal, TypeVar

from fl_lightning.engine.sites.events import Gone, Message
from fl_lightning.engine.sites.facts import (
    END,
    LEAST,
    WELCOME,
    Start,
    kind_of,
    pack_end,
    pack_told,
    unpack_end,
    unpack_welcome,
)
from fl_lightning.engine.sites.messages import one_line, pack, unpack_plain
from fl_lightning.engine.sites.secure.masks import Bundle, Masks, fingerprint_of
from fl_lightning.engine.sites.site import Connection
from fl_lightning.engine.sites.sites import LOOK, Carrier
from fl_lightning.errors import ConfigurationError, TrainingError
from fl_lightning.network.hidden import Outline
from fl_lightning.network.statistics import KIND, Statistics, Together, pack_statistics, unpack_statistics

NO_TRAINING = "the server asks for statistics, and does not train: join --statistics"
OUTLINE, ASKED, SUMMAND = "outline", "asked", "summand"  # kinds of the messages for a sum
FIT = "statistics"  # in the keys of the sites, which are drawn anew each time that a site tells
Told = TypeVar("Told")
Say = Callable[[str], None]


def ask(carrier: Carrier, sites: Sequence[str], say: Say) -> dict[str, Statistics]:
    """Wait until all sites have told their statistics; return these by the sites' names."""
    return _gather(carrier, sites, KIND, lambda site, message: unpack_statistics(message), say, "keep")


def ask_for_sum(carrier: Carrier, sites: Sequence[str], smallest: int, say: Say) -> Together:
    """Have the sites tell the sum of their statistics, of which no summand is known.

    Args:
        carrier: carries the messages.
        sites: the names of the sites.
        smallest: smallest number of examples of a class that is told.
        say: is called with a line for each site that tells.

    Raises:
        ConfigurationError: the sites' data do not go together.
        TrainingError: a site is gone before the sum is there, or has sent what is no summand.
    """
    shown: dict[str, object] = {}

    def outline(site: str, message: Message) -> Outline:
        plain = unpack_plain(message)
        shown[site] = Bundle.of(plain.get("shown")).plain()
        try:
            return Outline(**plain["outline"])
        except (KeyError, TypeError, ValueError) as error:
            raise TrainingError(f"expected the outline of a site's statistics, got {one_line(error)}") from error

    joined = Outline.joined(_gather(carrier, sites, OUTLINE, outline, say, "drop"))
    for site in sites:
        carrier.send(site, pack({"kind": ASKED, "outline": asdict(joined), "together": shown}))

    def summand(site: str, message: Message) -> int:
        if len(message) != 2 or len(message[1]) != joined.size:
            raise TrainingError(f"expected {joined.size} bytes of a site's statistics, got others")
        return int.from_bytes(message[1], "little")

    summands = _gather(carrier, sites, SUMMAND, summand, lambda line: None, "fail")
    return joined.decode(sum(summands.values()) % (1 << 8 * joined.size), smallest)


def _gather(
    carrier: Carrier,
    sites: Sequence[str],
    kind: str,
    read: Callable[[str, Message], Told],
    say: Say,
    at_loss: Literal["keep", "drop", "fail"],
) -> dict[str, Told]:
    """Wait until all sites have sent a message of a kind; tell those that send others that they are not wanted.

    Args:
        carrier: carries the messages.
        sites: the names of the sites.
        kind: the kind of the messages.
        read: reads the message of a site.
        say: is called with a line for each site.
        at_loss: whether the message of a site that goes is kept or dropped, or makes the survey fail.
    """
    told: dict[str, Told] = {}
    while len(told) < len(sites):
        try:
            heard = carrier.receive(LOOK)
        except TimeoutError:
            continue
        site = heard.site
        if isinstance(heard, Gone):
            if at_loss == "fail":
                raise TrainingError(f"{site} is gone, and the sum with it: ask again, and let all sites join again")
            if at_loss == "drop":
                told.pop(site, None)
            continue
        came = kind_of(heard.message)
        try:
            if came == WELCOME:
                _refuse_to_train(carrier, site, heard.message)
                raise TrainingError(NO_TRAINING)
            if came != kind:
                raise TrainingError("network.secure_aggregation must be the server's")
            told[site] = read(site, heard.message)
            said = f"{site} has told its statistics"
        except TrainingError as error:
            said = f"{heard.sender} is refused: {one_line(error)}"
            tell_end(carrier, [site], str(error))
        missing = [name for name in sites if name not in told]
        say(f"{said}; waiting for {', '.join(missing)}" if missing else said)
    return {site: told[site] for site in sites}


def _refuse_to_train(carrier: Carrier, site: str, welcome: Message) -> None:
    """Answer a site that would train, in the words that it understands."""
    start = Start(settings=unpack_welcome(welcome).settings, reason=NO_TRAINING)
    with suppress(OSError):  # it is gone
        carrier.send(site, pack_told(start))


def tell_end(carrier: Carrier, sites: Sequence[str], reason: str) -> None:
    """Tell sites that the server ends, and why; leave out those that are gone."""
    for site in sites:
        with suppress(OSError):
            carrier.send(site, pack_end(reason))


def tell(connection: Connection, told: Statistics) -> None:
    """Tell a server the statistics of a site; return when it has those of all sites.

    Raises:
        ConfigurationError: the server does not ask for statistics, or cannot join those of all sites.
        ConnectionError: the connection is lost.
    """
    connection.send(pack_statistics(told))
    _next(connection, None)


def tell_for_sum(connection: Connection, told: Statistics, masks: Masks, sites: Sequence[str], say: Say) -> None:
    """Tell a server the statistics of a site, hidden in the sum over all sites; return when it has that.

    Args:
        connection: carries the messages.
        told: the statistics of the site, all counts among them.
        masks: the keys of the site, drawn for this sum alone: the same masks on two messages would hide neither.
        sites: the names of all sites, from this site's own config, which is the one set that the site tells.
        say: is called with a line that names the other sites' certificates.

    Raises:
        ConfigurationError: the server does not ask for this, or cannot join the statistics, or numbers are too large.
        TrainingError: the server names other sites, or a key that is not a site's own.
        ConnectionError: the connection is lost.
    """
    outline = Outline.of(told)
    connection.send(pack({"kind": OUTLINE, "outline": asdict(outline), "shown": masks.bundle.plain()}))
    asked = _next(connection, ASKED)
    bundles = {name: Bundle.of(plain) for name, plain in asked["together"].items()}
    if sorted(bundles) != sorted(sites) or len(bundles) < LEAST:
        raise TrainingError(f"expected a sum over the sites {sorted(sites)}, at least {LEAST}, got {sorted(bundles)}")
    joined = Outline(**asked["outline"])
    if joined != Outline.joined({"all": joined, "this": outline}):
        raise TrainingError("expected the server to name this site's classes and columns among all, got others")
    masks.agree(bundles)
    named = [f"{name} ({fingerprint_of(bundle)})" for name, bundle in bundles.items()]
    say(f"sums over {', '.join(named)}: the beginnings of the certificates' fingerprints")
    content = json.dumps([asdict(joined), sorted(bundles)])
    hidden = masks.hide_whole(joined.encode(told), joined.size, 1, bundles, content)
    connection.send(pack({"kind": SUMMAND}, hidden.to_bytes(joined.size, "little")))
    _next(connection, None)


def _next(connection: Connection, kind: str | None) -> dict[str, Any]:
    """Return the server's next message, of a kind, or None for the end of the connection."""
    message = connection.receive()
    got = None if message is None else kind_of(message)
    if message is not None and got == END:
        raise ConfigurationError(f"the server ends without the statistics: {unpack_end(message)}")
    if got != kind:
        raise ConfigurationError("the server ends without the statistics: start it by serve --statistics FILE")
    return {} if message is None else unpack_plain(message)
