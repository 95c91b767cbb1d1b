"""Sockets between processes of one machine, which carry messages in tests and trials."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Mapping

from fl_lightning.engine.sites.events import Gone, Heard, Message
from fl_lightning.errors import TrainingError

LENGTH = 8  # bytes of a number: of parts, or of bytes


class SocketConnection:
    """Carries messages between a site and the server; see :class:`Connection`.

    Args:
        end: the site's end of a pair of connected sockets.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def receive(self) -> Message | None:
        """Wait for the next message; None if the server has closed its end."""
        return read(self._end)

    def send(self, message: Message) -> None:
        """Send a message."""
        write(self._end, message)

    def connect_again(self, reason: str) -> None:
        """End the site, which has one connection."""
        raise TrainingError(reason)


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

    def send(self, site: str, message: Message) -> None:
        """Send a message to a site."""
        write(self._ends[site], message)

    def receive(self, timeout: float) -> Heard | Gone:
        """Wait for the next message, or for the end of a connection, which is told once."""
        ready = self._selector.select(timeout)
        if not ready:
            raise TimeoutError
        key, _ = ready[0]
        end: socket.socket = key.fileobj  # type: ignore[assignment]  # what was registered
        message = read(end)
        if message is None:
            self._selector.unregister(end)
            end.close()
            return Gone(key.data)
        return Heard(key.data, message)

    def stop(self) -> None:
        """Close all connections, upon which the sites end."""
        self._selector.close()
        for end in self._ends.values():
            end.close()


def write(end: socket.socket, message: Message) -> None:
    """Write the number of a message's parts, and each with its length."""
    end.sendall(len(message).to_bytes(LENGTH, "big"))
    for part in message:
        end.sendall(len(part).to_bytes(LENGTH, "big"))
        end.sendall(part)


def read(end: socket.socket) -> Message | None:
    """Read a message; None if the other end is closed."""
    count = _read_all(end, LENGTH)
    parts: list[bytes] = []
    while count is not None and len(parts) < int.from_bytes(count, "big"):
        length = _read_all(end, LENGTH)
        part = None if length is None else _read_all(end, int.from_bytes(length, "big"))
        if part is None:
            return None
        parts.append(part)
    return None if count is None else parts


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
