"""Sockets between processes of one machine, which carry messages in tests and trials."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Mapping, Sequence
from typing import Any

LENGTH = 8  # bytes of the number that says how long a message is


class SocketConnection:
    """Carries messages between a site and the server; see :class:`Connection`.

    Args:
        end: the site's end of a pair of connected sockets.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def receive(self) -> bytes | None:
        """Wait for the next message; None if the server has closed its end."""
        return read(self._end)

    def send(self, message: bytes) -> None:
        """Send an answer."""
        write(self._end, message)


class SocketCarrier:
    """Carries messages between the server and sites, each of which may have several clients; see :class:`Carrier`.

    Args:
        ends: the server's end of the sockets, by the client's id.
    """

    def __init__(self, ends: Mapping[int, socket.socket]) -> None:
        self._ends = ends
        self._selector = selectors.DefaultSelector()
        for end in set(ends.values()):
            clients = [client for client, own in ends.items() if own is end]
            self._selector.register(end, selectors.EVENT_READ, clients)

    def __deepcopy__(self, memo: Any) -> SocketCarrier:
        return self  # a copy of the orchestrator talks to the same sites

    def send(self, client: int, message: bytes) -> None:
        """Send a message to a client's site."""
        write(self._ends[client], message)

    def receive(self) -> tuple[Sequence[int], bytes | None]:
        """Wait for the next answer; None of a site that has closed its connection, which is told once."""
        key, _ = self._selector.select()[0]
        end: socket.socket = key.fileobj  # type: ignore[assignment]  # what was registered
        message = read(end)
        if message is None:
            self._selector.unregister(end)
            end.close()
        return key.data, message

    def stop(self) -> None:
        """Close all connections, upon which the sites end."""
        self._selector.close()
        for end in self._ends.values():
            end.close()


def write(end: socket.socket, message: bytes) -> None:
    """Write a message and its length."""
    end.sendall(len(message).to_bytes(LENGTH, "big"))
    end.sendall(message)


def read(end: socket.socket) -> bytes | None:
    """Read a message; None if the other end is closed."""
    length = _read_all(end, LENGTH)
    return None if length is None else _read_all(end, int.from_bytes(length, "big"))


def _read_all(end: socket.socket, count: int) -> bytes | None:
    parts = []
    while count:
        try:
            part = end.recv(min(count, 1 << 20))
        except ConnectionResetError:
            return None
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
