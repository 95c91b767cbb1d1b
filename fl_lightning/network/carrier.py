"""Carrier: one stream of gRPC between the server and each site, over TLS with certificates on both sides.

A message goes as its number of parts and its head, then its bodies as they lie.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from fl_lightning.engine.sites.events import Gone, Heard, Message
from fl_lightning.errors import ConfigurationError, TrainingError
from fl_lightning.network.handshake import check_kit, look_at_server
from fl_lightning.network.kits import Kit, revoked_serials, written

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # processes that load data take no part in it
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else each stranger's handshake is a line

import grpc

METHOD = "/fl_lightning.Federation/Talk"
PING_MS = 10_000  # between two signs of life
SILENCE_MS = 10_000  # without an answer to one, after which the other end is gone; and the longest handshake
CONNECTIONS = 4096  # that the server takes, strangers' too, if it may open twice as many files
IDLE_MS = 5_000  # without a stream, after which a connection is closed; a site that is heard gets no second stream
LIMITS = {"parts": 16, "head": 1 << 24}  # of a message: its number of parts, and the bytes of the first one
FIRST_S = 60.0  # within which a site that has connected says that it comes
UNREAD = 4  # messages that a site may leave unread
GOODBYE_S = 10.0  # within which the sites take the last words
LAST_WORDS_S = 2.0  # within which the server takes those of a site
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # between two tries to reach the server
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _options(limit: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max(limit, LIMITS["head"])),
        ("grpc.keepalive_time_ms", PING_MS),
        ("grpc.keepalive_timeout_ms", SILENCE_MS),
        ("grpc.http2.ping_timeout_ms", SILENCE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_MS // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server_handshake_timeout_ms", SILENCE_MS),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_http_proxy", 0),  # the look at the server, which names what is wrong, goes there directly
    ]


def _most_connections() -> int:
    """Return how many connections the server takes: half of the files that it may open, for the run opens some, too."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return CONNECTIONS
    files = 2 * CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        files = min(files, hard)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))
    return files // 2


def _parts(message: Message) -> Iterator[bytes]:
    head, *bodies = message
    yield bytes([len(message)]) + head
    yield from bodies


def _messages(parts: Iterator[bytes]) -> Iterator[Message]:
    """Put messages together again.

    Raises:
        ValueError: a message has no head, or too many parts.
    """
    for head in parts:
        if not head or not 1 <= head[0] <= LIMITS["parts"] or len(head) > LIMITS["head"]:
            raise ValueError("expected the head of a message")
        yield [head[1:], *(next(parts) for _ in range(head[0] - 1))]


def _address_of(context: Any) -> str:
    """Return the address at the other end of a call, without its port: gRPC has it as ``ipv6:%5B::1%5D:40124``."""
    host, _, _ = unquote(context.peer()).partition(":")[2].rpartition(":")
    return host.strip("[]").removeprefix("::ffff:")


class _Line:
    """Holds what is on its way to a site; None ends the stream.

    Args:
        address: where the site is.
    """

    def __init__(self, address: str) -> None:
        self.waiting: queue.Queue[Message | None] = queue.Queue()
        self.address = address
        self.since = written(datetime.now(UTC))


class GrpcServer:
    """Carries messages between this process and the sites; see :class:`Carrier`.

    Args:
        kit: the server's kit.
        sites: the names of the sites that may take part.
        limit: largest number of bytes of a part of a message.
        say: is called with a line for each site that is refused, once for each reason.
    """

    def __init__(
        self, kit: Kit, sites: Collection[str], limit: int, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._kit = kit
        self._say = say
        self._refused: set[tuple[str, str]] = set()
        self._sites = frozenset(sites)
        self._limit = limit
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._arrived: queue.Queue[Heard | Gone] = queue.Queue(UNREAD * len(self._sites))

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # a copy of the orchestrator talks to the same sites

    def __enter__(self) -> Self:
        check_kit(self._kit)
        streams = 2 * len(self._sites) + 2  # those of sites that come again, too
        handler = grpc.stream_stream_rpc_method_handler(self._talk)
        service, method = METHOD[1:].split("/")
        self._server = grpc.server(
            ThreadPoolExecutor(streams),
            [grpc.method_handlers_generic_handler(service, {method: handler})],
            options=[
                *_options(self._limit),
                ("grpc.max_allowed_incoming_connections", _most_connections()),
                ("grpc.max_connection_idle_ms", IDLE_MS),
            ],
            maximum_concurrent_rpcs=streams,
        )
        pair = (self._kit.key, self._kit.certificate)
        credentials = grpc.ssl_server_credentials([pair], self._kit.authority, require_client_auth=True)
        listens = self._kit
        if listens.host not in LOOPBACK:
            listens = replace(listens, host="::")  # at all addresses of the machine
        try:
            self._server.add_secure_port(listens.address, credentials)
        except RuntimeError as error:
            raise ConfigurationError(
                f"expected port {self._kit.port} to be free, which the server's kit names: {error}"
            ) from error
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def send(self, site: str, message: Message) -> None:
        """Send a message to a site.

        Raises:
            OSError: the site is gone, or reads no more.
        """
        with self._lock:
            line = self._lines.get(site)
        if line is None:
            raise ConnectionError(f"{site} is not connected")
        if line.waiting.qsize() >= UNREAD:
            raise ConnectionError(f"{site} has not read the last {UNREAD} messages")
        line.waiting.put(message)

    def receive(self, timeout: float) -> Heard | Gone:
        """Wait for the next message of any site, or for the end of a connection.

        Raises:
            TimeoutError: nothing has happened within ``timeout`` seconds.
        """
        try:
            return self._arrived.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None

    def stop(self) -> None:
        """End the connections, upon which the sites end, too."""
        with self._lock:
            for line in self._lines.values():
                line.waiting.put(None)
        limit = time.monotonic() + GOODBYE_S
        while self._lines and time.monotonic() < limit:
            try:
                self._arrived.get(timeout=0.1)  # what nobody waits for keeps no thread
            except queue.Empty:
                continue
        self._server.stop(grace=1.0).wait()

    def _talk(self, parts: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Send a site what the server has for it, until the end; its own messages are read beside."""
        site = self._name_of(context)
        line = _Line(_address_of(context))
        with self._lock:
            other = self._lines.setdefault(site, line)
        if other is not line:
            there = f"{site} is there already, from {other.address} since {other.since}: end the other one first"
            self._refuse(site, there, context, grpc.StatusCode.ALREADY_EXISTS)
        leave = threading.Thread(target=self._leave, args=(site, line), daemon=True)
        if not context.add_callback(leave.start):
            leave.start()
            return
        threading.Thread(target=self._read, args=(site, line, parts, context), daemon=True).start()
        while (message := line.waiting.get()) is not None:
            yield from _parts(message)

    def _name_of(self, context: Any) -> str:
        """Return the name in the certificate of a site that may take part; end the call of any other."""
        from cryptography.x509 import load_pem_x509_certificate

        identity = context.auth_context()
        site: str = identity["x509_common_name"][0].decode()
        serial = load_pem_x509_certificate(identity["x509_pem_cert"][0]).serial_number
        if serial in revoked_serials(self._kit):
            self._refuse(site, f"the certificate of {site} is revoked: ask for a new kit", context)
        if site not in self._sites:
            self._refuse(site, f"{site} is none of network.sites", context)
        return site

    def _refuse(
        self, site: str, reason: str, context: Any, status: grpc.StatusCode = grpc.StatusCode.PERMISSION_DENIED
    ) -> None:
        """End the call of a site by an error, and say so once for each site and reason."""
        with self._lock:
            is_new = (site, reason) not in self._refused
            self._refused.add((site, reason))
        if is_new:
            self._say(f"{site} ({_address_of(context)}) is refused: {reason}")
        context.abort(status, reason)

    def _read(self, site: str, line: _Line, parts: Iterator[bytes], context: Any) -> None:
        """Take in a site's messages until its stream ends."""
        first = threading.Timer(FIRST_S, context.cancel)
        first.daemon = True
        first.start()
        try:
            for message in _messages(parts):
                first.cancel()
                self._arrived.put(Heard(site, message, line.address))
            line.waiting.put(None)  # the site has said its last word
        except Exception:  # gRPC's, of a stream that has ended, and those of a stranger's bytes
            context.cancel()
        finally:
            first.cancel()

    def _leave(self, site: str, line: _Line) -> None:
        """Tell that a site's stream has ended, before the site may come again."""
        line.waiting.put(None)
        self._arrived.put(Gone(site))
        with self._lock:
            del self._lines[site]


class GrpcConnection:
    """Carries messages between this process and the server; see :class:`Connection`.

    Args:
        kit: the site's kit.
        limit: largest number of bytes of a part of a message.
        once: whether the site ends when the server does, or is gone.
        say: is called with a line when the site waits for the server.
    """

    def __init__(self, kit: Kit, limit: int, once: bool = False, say: Callable[[str], None] = print) -> None:
        self._kit = kit
        self._limit = limit
        self._once = once
        self._say = say
        self._channel: Any = None
        self._pause = 0.0  # seconds before the next try to reach the server
        self._was_heard = False

    def __enter__(self) -> Self:
        check_kit(self._kit)
        self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def receive(self) -> Message | None:
        """Wait for the next message; None if the server has ended the connection.

        Raises:
            ConnectionError: the connection is lost.
            ConfigurationError: the server refuses the site.
        """
        try:
            message = next(self._messages, None)
            self._was_heard = True
            self._pause = 0.0
            return message
        except grpc.RpcError as error:
            raise self._reason(error) from error
        except (ValueError, RuntimeError) as error:  # a stream that ends within a message, too
            raise ConnectionError(f"the server's message is broken: {error}") from error

    def send(self, message: Message) -> None:
        """Send a message; that a connection is lost is noticed by :meth:`receive`."""
        for part in _parts(message):
            self._outbox.put(part)

    def connect_again(self, reason: str) -> None:
        """Wait until the server is there again.

        Raises:
            TrainingError: the site ends when the server does.
            ConfigurationError: the server refuses the site.
        """
        self._close()
        if self._once:
            raise TrainingError(f"{reason}: join again to go on")
        self._say(f"{reason}; waiting for the server …")
        self._connect()

    def _connect(self) -> None:
        """Open a stream as soon as the server answers; wait twice as long after each try, up to a minute.

        Why nobody answers is said once for each reason.
        """
        told = set[str]()
        while True:
            time.sleep(self._pause)
            self._pause = min(max(FIRST_WAIT_S, 2 * self._pause), LONGEST_WAIT_S)
            try:
                look_at_server(self._kit, timeout=SILENCE_MS / 1000)
                break
            except OSError as error:
                reason = _unreached(error, self._kit)
                if reason not in told:
                    self._say(f"{reason}; trying again in {self._pause:g} s, and at least once a minute …")
                told.add(reason)
        credentials = grpc.ssl_channel_credentials(self._kit.authority, self._kit.key, self._kit.certificate)
        self._channel = grpc.secure_channel(self._kit.address, credentials, _options(self._limit))
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stream = self._channel.stream_stream(METHOD)(iter(self._outbox.get, None))
        self._messages = _messages(self._stream)

    def _close(self) -> None:
        if self._channel is not None:
            self._outbox.put(None)
            with suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
                self._stream.exception(LAST_WORDS_S)  # waits until the server has read what was sent
            self._channel.close()
            self._channel = None

    def _reason(self, error: Any) -> Exception:
        """Say why a stream has ended: a refusal, or a connection that is lost."""
        details = str(error.details())
        refusals = {grpc.StatusCode.PERMISSION_DENIED}
        if not self._was_heard:  # later it may be this site's own connection, which the server does not yet miss
            refusals.add(grpc.StatusCode.ALREADY_EXISTS)
        if error.code() in refusals:
            return ConfigurationError(f"the server refuses this site: {details}")
        return ConnectionError(f"the connection to the server is lost ({error.code().name}: {details})")


def _unreached(error: OSError, kit: Kit) -> str:
    """Say why a server cannot be reached."""
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens at {kit.address} (connection refused)"
    if isinstance(error, socket.gaierror):
        return f"no address is known of {kit.host} ({error.strerror})"
    if isinstance(error, TimeoutError):
        return f"nobody answers at {kit.address} within {SILENCE_MS // 1000} s"
    return f"the server at {kit.address} is not reached ({error.strerror or error})"
