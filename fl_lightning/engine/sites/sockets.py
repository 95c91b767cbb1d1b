"""Sockets between processes of one machine, which carry messages in tests and trials."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Mapping

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
        """Send a message."""
        write(self._end, message)


class SocketCarrier:
    """Carries messages between the server and its sites; see :class:`Carrier`.

    Args:
        ends: the server's end of each site's socket, by the site's name.
    """

    def __init__(self, ends: Mapping[str, socket.socket]) -> None:
        self._ends = dict(ends)
        self._selector = selectors.DefaultSelector()
        for site, end in ends.items():
            self._selector.register(end, selectors.EVENT_READ, site)

    def let_back(self, site: str, end: socket.socket) -> None:
        """Connect a site that was gone again."""
        self._ends[site] = end
        self._selector.register(end, selectors.EVENT_READ, site)

    def send(self, site: str, message: bytes) -> None:
        """Send a message to a site."""
        write(self._ends[site], message)

    def receive(self, timeout: float | None) -> tuple[str, bytes | None]:
        """Wait for the next message; None of a site that has closed its connection, which is told once."""
        if not self._selector.get_map():
            raise ConnectionError("no site is connected any more")
        ready = self._selector.select(timeout)
        if not ready:
            raise TimeoutError
        key, _ = ready[0]
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
