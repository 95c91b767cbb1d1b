"""What a site and a server tell each other before the first round: counts of the data, and the settings of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.sites.events import Message
from fl_lightning.engine.sites.messages import (
    LARGEST,
    expect,
    form_of,
    is_count,
    is_number,
    one_line,
    pack,
    unpack_plain,
)
from fl_lightning.errors import ConfigurationError, TrainingError

SHOWN = 20_000  # largest number of characters of what a site shows to others
LEAST = 3  # sites whose numbers are summed: of two, each knows the other's number from the sum
OF_STATISTICS = ("data.mean", "data.std", "data.classes", "data.num_classes")  # settings that may come of a survey
WELCOME, START, READY, END = "welcome", "start", "ready", "end"  # kinds of a message; answers for a round have none


@dataclass(frozen=True)
class Facts:
    """Holds what a site tells of the data of one client.

    Attributes:
        client: the client's id in the federation.
        size: n_k, the number of training examples.
        class_counts: numbers of training examples by class; None for data without classes.
        class_names: the names of the classes, in the order of their numbers; None where the data module has none.
        scaling: mean and standard deviation of each channel by which inputs are scaled; None where they are not.
        fingerprint: hash of the site's data, see :func:`data_fingerprint`.
        columns: the names of the columns of inputs, in order; none for images and other data without names.
    """

    client: int
    size: int
    class_counts: Sequence[int] | None
    class_names: Sequence[str] | None
    scaling: Sequence[Sequence[float]] | None
    fingerprint: str
    columns: Sequence[str] = field(default_factory=list)

    @classmethod
    def of(cls, data: FederatedData, client: int, row: int) -> Facts:
        """Count the data of a client, which a data module that is set up has as its client ``row``."""
        counts = data.class_counts()
        own_counts = None if counts is None else counts[row].tolist()
        names: Any = getattr(data, "class_names", None)
        class_names = None
        if names is not None:
            class_names = [str(name) for name in names]
        mean, std = (getattr(data, name, None) for name in ("mean", "std"))
        scaling = None if mean is None or std is None else [list(mean), list(std)]
        raw = data.raw_inputs(row)
        columns = [] if raw is None else list(raw.names)
        return cls(client, int(data.sizes[row]), own_counts, class_names, scaling, data.fingerprint(), columns)

    @property
    def classes(self) -> Sequence[str] | int:
        """The names of the classes; their number where they have none."""
        return self.class_names or len(self.class_counts or ())


@dataclass(frozen=True)
class Welcome:
    """Holds what a site says when it comes.

    Attributes:
        site: the site's name.
        facts: counts of the data of each of its clients.
        settings: the settings of its config that affect results, by dotted names.
    """

    site: str
    facts: Sequence[Facts]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Start:
    """Holds what the server answers to a welcome.

    Attributes:
        sizes: (N,) numbers of training examples of all clients; none yet where the site is refused.
        settings: the settings of the server's config that affect results, by dotted names.
        reason: why the site is refused; empty if it is not.
        fit: the name of the fit, where the sites hide their answers from the server by masks; else empty.
    """

    sizes: Sequence[int] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    fit: str = ""


def pack_told(told: Welcome | Start) -> Message:
    """Write what a site or a server tells."""
    kind = WELCOME if isinstance(told, Welcome) else START
    return pack({"kind": kind, **asdict(told)})


def pack_ready(shown: Mapping[str, str] | None = None) -> Message:
    """Write that a site can train from now on, and what it shows to others with which it hides answers."""
    return pack({"kind": READY, "shown": dict(shown or {})})


def unpack_ready(message: Message) -> dict[str, str]:
    """Read what a site shows to others, which they check.

    Raises:
        TrainingError: the message is another one.
    """
    shown = _plain(message, READY).get("shown")
    if not isinstance(shown, dict) or sum(len(str(value)) for value in shown.values()) > SHOWN:
        raise TrainingError("expected the public key of a site, got something else, or more")
    return shown


def pack_end(reason: str) -> Message:
    """Write that the server ends before its last round, and why."""
    return pack({"kind": END, "reason": reason})


def unpack_end(message: Message) -> str:
    """Read why the server ends before its last round."""
    return one_line(_plain(message, END).get("reason"))


def kind_of(message: Message) -> str | None:
    """Return the kind of a message; None for an answer for a round, and for what is no message."""
    try:
        kind = unpack_plain(message).get("kind")
    except TrainingError:
        return None
    return None if kind is None else str(kind)


def unpack_welcome(message: Message) -> Welcome:
    """Read what a site says when it comes.

    Raises:
        TrainingError: the message is another one.
    """
    plain = _plain(message, WELCOME)
    try:
        facts = [_checked(Facts(**fact)) for fact in plain["facts"]]
        return Welcome(one_line(plain["site"]), facts, dict(plain["settings"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"expected the welcome of a site, got another: {one_line(error)}") from error


def _checked(facts: Facts) -> Facts:
    """Refuse what are no counts, names and hash.

    Raises:
        TypeError: they are not.
    """
    counts, names, scaling = facts.class_counts, facts.class_names, facts.scaling
    lists = (counts, names, scaling, *(scaling or ()), facts.columns)
    if not all(isinstance(value, list | None) for value in lists):
        raise TypeError("expected lists")
    if not all(map(is_count, (facts.client, facts.size, *(counts or ())))):
        raise TypeError(f"expected whole numbers from 0 to {LARGEST:,}")
    if not all(map(is_number, chain(*(scaling or ())))):
        raise TypeError("expected mean and standard deviation")
    if not all(isinstance(name, str) for name in (facts.fingerprint, *(names or ()), *facts.columns)):
        raise TypeError("expected names of classes and of columns, and a hash")
    return facts


def unpack_start(message: Message) -> Start:
    """Read what the server answers to a welcome.

    Raises:
        TrainingError: the message is another one.
    """
    plain = _plain(message, START)
    try:
        if not all(map(is_count, plain["sizes"])):
            raise TypeError(f"expected sizes from 0 to {LARGEST:,}")
        return Start(list(plain["sizes"]), dict(plain["settings"]), one_line(plain["reason"]), one_line(plain["fit"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"expected a server's start, got another: {one_line(error)}") from error


def _plain(message: Message, kind: str) -> dict[str, Any]:
    plain = unpack_plain(message)
    if plain.get("kind") != kind:
        raise TrainingError(f"expected a message of the kind {kind}, got {one_line(plain.get('kind', 'an answer'))}")
    del plain["kind"]
    return plain


def check_alike(here: Mapping[str, Any], there: Mapping[str, Any], other: str) -> None:
    """Refuse to train with another machine whose settings differ.

    Args:
        here: this machine's settings, by dotted names.
        there: the other machine's settings, by dotted names.
        other: the other machine, as the message names it.

    Raises:
        ConfigurationError: some settings differ, which the message names.
    """
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if names:
        texts = [f"{name} ({_short(here.get(name))} here, {_short(there.get(name))} there)" for name in names]
        one_sided = [name for name in names if name in OF_STATISTICS and None in (here.get(name), there.get(name))]
        advice = "train from the same config with the same options"
        if one_sided:
            lacks = "this machine" if here.get(one_sided[0]) is None else other
            advice += (
                f"; {lacks} may lack a config that the other one has, such as that of serve --statistics: pass it as a "
                "second --config"
            )
        if any(name.startswith("data.") and name not in one_sided for name in names):
            advice += ", or name what says where a machine has its data in the data module's places"
        raise ConfigurationError(
            f"expected {other} to have the settings of this machine, got others: {one_line(', '.join(texts))}: {advice}"
        )


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def check_start(start: Start, welcome: Welcome, num_clients: int) -> None:
    """Refuse a server that says other numbers of examples than a site has told it.

    Args:
        start: the server's answer.
        welcome: the site's own words.
        num_clients: N, the number of clients of all sites.

    Raises:
        TrainingError: there are more or fewer than N numbers, or another one for a client of the site.
    """
    advice = "correct network.sites, which must be the same everywhere"
    count = len(start.sizes)
    expect(count == num_clients, f"the server to know {num_clients} clients", f"{count}: {advice}")
    for fact in welcome.facts:
        told = start.sizes[fact.client]
        words = f"the server to count {fact.size:,} training examples of client {fact.client}, as this site has told it"
        expect(told == fact.size, words, f"{told:,}: ask who runs the server")


def check_examples(welcome: Welcome, most: int | None) -> None:
    """Refuse a site that tells of more training examples than it may have, and so would have a larger weight.

    Args:
        welcome: the site's own words.
        most: the largest number of training examples of the site; None for no limit.

    Raises:
        TrainingError: the site has more.
    """
    size = sum(fact.size for fact in welcome.facts)
    words = f"{most} training examples of site {welcome.site} at most (network.max_examples)"
    expect(most is None or size <= most, words, f"{size}: ask the site, or raise the limit")


def buffer_lines(module: nn.Module) -> list[str]:
    """Say name, type and shape of each of a module's buffers, which leave a site after each round."""
    return [f"{name}: {form_of(buffer)}" for name, buffer in module.named_buffers()]


def sizes_of(start: Start) -> Tensor:
    """Return the (N,) numbers of training examples that a server tells."""
    return torch.tensor(start.sizes)
