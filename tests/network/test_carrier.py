"""Messages over gRPC and mutual TLS: sites that come, go, are silent and come again, and strangers."""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from fl_lightning.engine.sites.events import Gone, Heard
from fl_lightning.errors import ConfigurationError
from fl_lightning.network import carrier
from fl_lightning.network.carrier import METHOD, GrpcConnection, GrpcServer
from fl_lightning.network.kits import make_kits, renew, revoke, server_kit, site_kit

SITES = ("anna", "berlin")
LIMIT = 1 << 20
# A site that says that it comes, and sends each message back, its parts turned round, until the server ends.
ECHO = """
import sys
from pathlib import Path
from fl_lightning.network.carrier import GrpcConnection
from fl_lightning.network.kits import site_kit

kit = site_kit(Path(sys.argv[1]))
with GrpcConnection(kit, 1 << 20, once="--once" in sys.argv, say=lambda line: print(line, flush=True)) as connection:
    while True:
        try:
            connection.send([b"here is " + kit.name.encode()])
            while (message := connection.receive()) is not None:
                connection.send([part[::-1] for part in message])
            break
        except ConnectionError as error:
            connection.connect_again(str(error))
print("the end", flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    make_kits([*SITES, "cork"], "localhost", folder, free_port())
    return folder


@contextmanager
def server(kits: Path, limit: int = LIMIT, said: list[str] | None = None) -> Iterator[GrpcServer]:
    say = [].append if said is None else said.append
    with GrpcServer(server_kit(kits / "server"), SITES, limit, say) as made:
        yield made


@contextmanager
def echoes(kits: Path, *sites: str, options: tuple[str, ...] = ()) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    """Start sites, each in a process of its own."""
    started = {}
    for site in sites:
        command = [sys.executable, "-c", ECHO, str(kits / site), *options]
        started[site] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def heard(made: GrpcServer, count: int, within: float = 60) -> set[tuple[str, bytes]]:
    """The next messages of any site, in any order."""
    found: set[tuple[str, bytes]] = set()
    for _ in range(count):
        event = made.receive(within)
        assert isinstance(event, Heard), event
        found.add((event.site, b"|".join(event.message)))
    return found


def test_messages_go_both_ways_as_they_lie(kits: Path) -> None:
    """Heads and bodies, empty ones too, in their order; a site that is killed is told at once, and may come again."""
    with echoes(kits, *SITES) as processes:
        with server(kits) as made:
            assert heard(made, 2) == {("anna", b"here is anna"), ("berlin", b"here is berlin")}
            body = os.urandom(LIMIT - 1)
            for site in SITES:
                made.send(site, [b"head", b"", body])
            echoed = b"|".join([b"daeh", b"", body[::-1]])
            assert heard(made, 2) == {("anna", echoed), ("berlin", echoed)}
            with pytest.raises(TimeoutError):
                made.receive(0.1)
            processes["berlin"].send_signal(signal.SIGKILL)
            assert made.receive(5) == Gone("berlin")
            with echoes(kits, "berlin"):
                assert heard(made, 1) == {("berlin", b"here is berlin")}
                with pytest.raises(ConnectionError, match="cork is not connected"):
                    made.send("cork", [b"lost"])
            assert made.receive(5) == Gone("berlin")
            for connection in psutil.Process().net_connections("inet"):
                ends = [end.ip.removeprefix("::ffff:") for end in (connection.laddr, connection.raddr) if end]
                assert set(ends) <= {"127.0.0.1", "::1"}, connection
        said, _ = processes["anna"].communicate(timeout=30)
        assert said.splitlines()[-1] == "the end"


def test_what_a_site_says_before_it_ends_arrives(kits: Path) -> None:
    body = os.urandom(LIMIT - 1)
    with server(kits) as made:
        with GrpcConnection(site_kit(kits / "anna"), LIMIT) as ends:
            ends.send([b"I come"])
            ends.send([b"last words", *[body] * 10])
        assert heard(made, 2) == {("anna", b"I come"), ("anna", b"|".join([b"last words", *[body] * 10]))}
        assert made.receive(5) == Gone("anna")


@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
def test_a_server_may_be_known_by_its_address(host: str, tmp_path: Path) -> None:
    make_kits(SITES, host, tmp_path, free_port())
    with echoes(tmp_path, "anna"), server(tmp_path) as made:
        assert heard(made, 1) == {("anna", b"here is anna")}


@pytest.mark.parametrize("name", ["revoked", "cork", "a second one"])
def test_who_may_not_take_part_is_told_so(name: str, kits: Path) -> None:
    site = "cork" if name == "cork" else "anna"
    told = {
        "revoked": "the certificate of anna is revoked: ask for a new kit",
        "cork": "cork is none of network.sites",
        "a second one": r"anna is there already, from (127\.0\.0\.1|::1) since 20\d\d-.* UTC: end the other one first",
    }
    said: list[str] = []
    with server(kits, said=said) as made, GrpcConnection(site_kit(kits / "anna"), LIMIT) as first:
        first.send([b"I come"])
        heard(made, 1)
        if name == "revoked":
            first.__exit__(None, None, None)
            assert made.receive(5) == Gone("anna")
            revoke(["anna"], kits)  # which the server reads anew
        for _ in range(2):
            with GrpcConnection(site_kit(kits / site), LIMIT) as second:
                with pytest.raises(ConfigurationError) as refused:
                    second.receive()
                assert re.fullmatch(f"the server refuses this site: {told[name]}", str(refused.value))
        (line,) = said  # of two tries
        assert re.fullmatch(rf"{site} \((127\.0\.0\.1|::1)\) is refused: {told[name]}", line)
        if name == "revoked":
            renew(["anna"], kits)
            with GrpcConnection(site_kit(kits / "anna"), LIMIT) as renewed:
                renewed.send([b"I come again"])
                assert heard(made, 1) == {("anna", b"I come again")}


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("localhost", r"nobody listens at localhost:\d+ \(connection refused\); trying again in 1 s, and at least"),
        ("nowhere.invalid", r"no address is known of nowhere\.invalid \(.+\); trying again in 1 s"),
    ],
)
def test_why_a_server_is_not_reached_is_said_once(
    host: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_kits(SITES, host, tmp_path, free_port())
    said: list[str] = []
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(carrier.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt), GrpcConnection(site_kit(tmp_path / "anna"), LIMIT, say=said.append):
        pass
    assert pauses == [0, 1, 2, 4]
    (line,) = said
    assert re.match(told, line), line


def test_a_part_above_the_limit_ends_its_stream_alone(kits: Path) -> None:
    """Nothing of it is read; the other site is heard on."""
    with server(kits) as made, echoes(kits, "berlin"), GrpcConnection(site_kit(kits / "anna"), 1 << 30) as large:
        large.send([b"I come"])
        heard(made, 2)
        before = psutil.Process().memory_info().rss
        large.send([b"head", bytes(1 << 27)])
        assert made.receive(30) == Gone("anna")
        with pytest.raises(ConnectionError, match="the connection to the server is lost"):
            large.receive()
        made.send("berlin", [b"on"])
        assert heard(made, 1) == {("berlin", b"no")}
        assert psutil.Process().memory_info().rss - before < 2.2 * (1 << 27)  # of this process, which also sends it


@pytest.mark.parametrize("head", [b"", b"\x00head", b"\xff" + b"head"])
def test_bytes_that_are_no_message_end_their_stream_alone(head: bytes, kits: Path) -> None:
    with server(kits) as made, GrpcConnection(site_kit(kits / "anna"), LIMIT) as wrong:
        wrong.send([b"I come"])
        heard(made, 1)
        wrong._outbox.put(head)
        assert made.receive(10) == Gone("anna")


def test_who_says_nothing_is_sent_away(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "FIRST_S", 0.5)
    with server(kits) as made, GrpcConnection(site_kit(kits / "anna"), LIMIT):
        assert made.receive(10) == Gone("anna")


def strangers(port: int) -> Iterator[socket.socket]:
    """Connections that end in no handshake: silent, half a greeting, noise, plain HTTP/2, TLS 1.1, no certificate."""
    openings = [b"", b"\x16\x03\x01\x02\x00\x01\x00", os.urandom(512), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    for opening in openings * 50:
        plain = socket.create_connection(("localhost", port), 5)
        plain.sendall(opening)
        yield plain
    for oldest in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = oldest
        plain = socket.create_connection(("localhost", port), 5)
        try:
            with context.wrap_socket(plain) as secured:
                secured.settimeout(5)
                assert not secured.recv(1), "the server has spoken to a stranger"
        except (ssl.SSLError, ConnectionError, TimeoutError):
            pass
        yield plain


def is_open(stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    try:
        return bool(stranger.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_strangers_cost_the_sites_nothing(kits: Path) -> None:
    with server(kits) as made:
        port = server_kit(kits / "server").port
        threads = psutil.Process().num_threads()
        connections = list(strangers(port))
        assert psutil.Process().num_threads() - threads < 20
        with pytest.raises(grpc.RpcError), closing(grpc.insecure_channel(f"localhost:{port}")) as channel:
            next(channel.stream_stream(METHOD)(iter([b"\x01plain"]), timeout=5))
        with echoes(kits, *SITES):
            heard(made, 2)
            made.send("anna", [b"ab"])
            assert heard(made, 1) == {("anna", b"ba")}
        for connection in connections:
            connection.close()


def test_silent_strangers_leave_the_run_its_files(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50, 20 are kept, until a handshake is over; a site comes in after that."""
    monkeypatch.setattr(carrier, "CONNECTIONS", 20)
    monkeypatch.setattr(carrier, "SILENCE_MS", 2000)
    with server(kits) as made:
        address = "localhost", server_kit(kits / "server").port
        strangers = [socket.create_connection(address, 10) for _ in range(50)]
        time.sleep(0.5)
        assert sum(is_open(stranger) for stranger in strangers) == 20
        with echoes(kits, "anna"):
            assert heard(made, 1) == {("anna", b"here is anna")}
        time.sleep(0.5)
        assert not any(is_open(stranger) for stranger in strangers)
        for stranger in strangers:
            stranger.close()


def test_a_sites_further_connections_keep_no_other_site_out(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections with a valid certificate and no stream take all places; they are closed when they are idle."""
    monkeypatch.setattr(carrier, "CONNECTIONS", 20)
    monkeypatch.setattr(carrier, "IDLE_MS", 1000, raising=False)
    kit = site_kit(kits / "anna")
    credentials = grpc.ssl_channel_credentials(kit.authority, kit.key, kit.certificate)
    with server(kits) as made, GrpcConnection(kit, LIMIT) as first, ExitStack() as further:
        first.send([b"I come"])
        heard(made, 1)
        for number in range(40):
            options = [("grpc.use_local_subchannel_pool", 1), ("number", number)]  # else they share a connection
            channel = further.enter_context(grpc.secure_channel(kit.address, credentials, options))
            grpc.channel_ready_future(channel)
        with echoes(kits, "berlin"):
            assert heard(made, 1, within=30) == {("berlin", b"here is berlin")}
        made.send("anna", [b"on"])
        assert first.receive() == [b"on"]


def test_a_server_may_open_more_files_than_it_has_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual limit of 1,024 files is raised as far as it may be; half of the files are for connections."""
    resource = pytest.importorskip("resource")
    allowed = [(1024, 1500), (1024, 100_000), (100_000, 100_000), (1024, resource.RLIM_INFINITY)]
    set_to = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: set_to.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: allowed[len(set_to)])
    assert [carrier._most_connections() for _ in allowed] == [750, 4096, 4096, 4096]
    assert set_to == [(1500, 1500), (8192, 100_000), (100_000, 100_000), (8192, resource.RLIM_INFINITY)]


@pytest.mark.slow
def test_a_silent_site_is_gone_and_comes_again_by_itself(kits: Path) -> None:
    """SIGSTOP: noticed within PING_MS + SILENCE_MS; SIGCONT: the site notices, and comes again."""
    with echoes(kits, "anna") as processes:
        with server(kits) as made:
            heard(made, 1)
            processes["anna"].send_signal(signal.SIGSTOP)
            began = time.monotonic()
            assert made.receive(40) == Gone("anna")
            assert time.monotonic() - began < (carrier.PING_MS + carrier.SILENCE_MS) / 1000 + 5
            processes["anna"].send_signal(signal.SIGCONT)
            assert heard(made, 1, within=60) == {("anna", b"here is anna")}
        said, _ = processes["anna"].communicate(timeout=30)
        assert said.splitlines()[-1] == "the end"


@pytest.mark.slow
def test_sites_wait_for_a_server_that_is_killed(kits: Path) -> None:
    """One of them comes again by itself; one with --once ends in one line."""
    serve = f"""
from pathlib import Path
from fl_lightning.network.carrier import GrpcServer
from fl_lightning.network.kits import server_kit
with GrpcServer(server_kit(Path({str(kits / "server")!r})), {SITES!r}, 1 << 20) as made:
    print(made.receive(60).site, made.receive(60).site, flush=True)
    made.receive(600)
"""
    killed = subprocess.Popen([sys.executable, "-c", serve], stdout=subprocess.PIPE, text=True)
    with echoes(kits, "anna") as waits, echoes(kits, "berlin", options=("--once",)) as ends:
        assert killed.stdout is not None
        assert set(killed.stdout.readline().split()) == set(SITES)
        killed.kill()
        killed.wait()
        _, error = ends["berlin"].communicate(timeout=30)
        assert ends["berlin"].returncode == 1
        assert "the connection to the server is lost" in error.splitlines()[-1]
        with server(kits) as made:
            assert heard(made, 1) == {("anna", b"here is anna")}
        said, _ = waits["anna"].communicate(timeout=30)
    assert said.splitlines()[-1] == "the end"
