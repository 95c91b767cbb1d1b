"""The names of clients: labels in messages, tables and plots. Names change no result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from fl_lightning.errors import ConfigurationError


class NamesClients(Protocol):
    """Describes the attributes of a data module that hold the clients' number and names."""

    num_clients: int
    client_names: Sequence[str] | None


def names_of(data: NamesClients) -> list[str] | None:
    """Return the names of a data module's clients, as texts; None if the clients have none.

    Raises:
        ConfigurationError: there is not one name for each client, or two clients have the same name.
    """
    given = data.client_names
    if given is None:
        return None
    if isinstance(given, str) or len(given) != data.num_clients:
        got = repr(given) if isinstance(given, str) else f"{len(given):,}"
        raise ConfigurationError(
            f"expected client_names to be {data.num_clients:,} names, one for each client, got {got}: correct them"
        )
    names = [str(name) for name in given]
    (name, times), *_ = Counter(names).most_common(1)
    if times > 1:
        first, second = [k for k, each in enumerate(names) if each == name][:2]
        raise ConfigurationError(
            f"expected client_names to differ, got {name!r} for clients {first} and {second}: rename one"
        )
    return names


def label(client: int, names: Sequence[str] | None) -> str:
    """Write a client's number, which settings and metrics use, with the client's name if the client has one.

    >>> label(1, None), label(1, ["bern", "oslo"])
    ('1', '1 (oslo)')
    """
    name = str(client) if names is None else str(names[client])
    return name if name == str(client) else f"{client} ({name})"
