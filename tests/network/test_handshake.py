"""What a handshake refuses, and in which words: hostile and mistaken peers with certificates made by hand, on loopback.

Each refusal is asked for twice: of the look, which says why, and of gRPC, over which the messages go.
"""

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from fl_lightning.errors import ConfigurationError

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from lib.certificates import JOINS, LOCALHOST, SERVES, Signed, signed

from fl_lightning.network import handshake
from fl_lightning.network.handshake import check_kit, look_at_server
from fl_lightning.network.kits import Kit, make_kits, renew, revoke, revoked_serials

URI = x509.UniformResourceIdentifier("urn:fl-lightning:site:localhost")
METHOD = "/fl_lightning.Test/Say"
DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PAUSE", 0.01)


@pytest.fixture(scope="module")
def authority() -> Signed:
    return signed("authority")


@pytest.fixture(scope="module")
def other() -> Signed:
    """An authority of the same name, which is another one."""
    return signed("authority")


def kit(folder: Path, held: Signed, authority: Signed, name: str = "anna", port: int = 8002) -> Kit:
    """A kit with any certificate."""
    found = Kit(folder / name, name, "localhost", port)
    found.folder.mkdir()
    found.path("crt").write_bytes(held.pem)
    found.path("key").write_bytes(held.key_pem)
    found.authority_path.write_bytes(authority.pem)
    return found


def held_in(kit: Kit) -> Signed:
    key = load_pem_private_key(kit.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return Signed(x509.load_pem_x509_certificate(kit.certificate), key)


@contextmanager
def served(
    held: Signed, authority: bytes, revoked: Callable[[], set[int]] = set, host: str = "localhost"
) -> Iterator[int]:
    """A gRPC server with mutual TLS, which answers with the name in the peer's certificate; yields its port."""

    def say(request: bytes, context: grpc.ServicerContext) -> bytes:
        seen = context.auth_context()
        if x509.load_pem_x509_certificate(seen["x509_pem_cert"][0]).serial_number in revoked():
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "revoked")
        (name,) = seen["x509_common_name"]
        return bytes(name)

    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {"Say": grpc.unary_unary_rpc_method_handler(say)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fl_lightning.Test", handlers),))
    credentials = grpc.ssl_server_credentials([(held.key_pem, held.pem)], authority, require_client_auth=True)
    port = server.add_secure_port(f"{host}:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def say(kit: Kit) -> str:
    """Call a server with a kit; the server's answer, or the status of the refusal."""
    credentials = grpc.ssl_channel_credentials(kit.authority, kit.key, kit.certificate)
    with grpc.secure_channel(kit.address, credentials) as channel:
        try:
            return str(channel.unary_unary(METHOD)(b"", timeout=5).decode())
        except grpc.RpcError as error:
            return str(error.code().name)


def line_of(kit: Kit, check: Callable[[Kit], None] = check_kit) -> str:
    with pytest.raises(ConfigurationError) as caught:
        check(kit)
    assert str(caught.value).isprintable()
    return str(caught.value)


def look(kit: Kit) -> None:
    look_at_server(kit, 2.0)


@contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that treats each connection in its own way; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer, suppress(OSError):
                    answer(peer)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


# The kit


def test_a_right_kit_passes(tmp_path: Path, authority: Signed) -> None:
    check_kit(kit(tmp_path, signed("anna", authority, JOINS, URI), authority))
    server = kit(tmp_path, signed("server", authority, SERVES, LOCALHOST), authority, "server")
    (server.folder / "revoked.txt").touch()
    check_kit(server)
    for made in make_kits(["berlin"], "localhost", tmp_path / "made"):
        check_kit(made)


def test_what_is_wrong_with_a_certificate_is_one_line(tmp_path: Path, authority: Signed, other: Signed) -> None:
    cases = {
        rf"has expired on {DATE}: fl-lightning keys --renew": signed("anna", authority, JOINS, URI, (-9, -0.1)),
        rf"is not valid before {DATE}, but this machine's clock says {DATE}: set it": signed(
            "anna", authority, JOINS, URI, (1, 9)
        ),
        r"is of another authority than .*authority\.crt: use kits that": signed("anna", other, JOINS, URI),
        r"of another authority": signed("anna", None, JOINS, URI),
        r"is not made for a site": signed("anna", authority, SERVES, LOCALHOST),
        r"is not made for a site\b": signed("anna", authority),
        r"expected the certificate of anna in .*site\.crt, got that of 'CN=berlin'": signed(
            "berlin", authority, JOINS, URI
        ),
    }
    for number, (told, held) in enumerate(cases.items()):
        (tmp_path / str(number)).mkdir()
        line = line_of(kit(tmp_path / str(number), held, authority))
        assert re.search(told, line), line
    expired = signed("anna", authority, JOINS, URI, (-9, -0.1))
    end = expired.certificate.not_valid_after_utc
    assert f"{end:%Y-%m-%d %H:%M} UTC" in line_of(kit(tmp_path, expired, authority))


def test_a_servers_kit_is_checked_too(tmp_path: Path, authority: Signed) -> None:
    server = kit(tmp_path, signed("server", authority, SERVES, x509.DNSName("a.org")), authority, "server")
    assert "is for a.org, not for localhost: fl-lightning keys --renew server --server localhost" in line_of(server)
    check = replace(server, host="A.org")
    assert "expected a kit's file" in line_of(check), "it has no list of what is revoked"
    (server.folder / "revoked.txt").touch()
    check_kit(check)
    server.path("crt").write_bytes(signed("server", authority, JOINS, LOCALHOST).pem)
    assert "does not belong to" in line_of(server)


def test_files_of_a_kit_that_are_damaged_or_missing_are_one_line(tmp_path: Path, authority: Signed) -> None:
    held = signed("anna", authority, JOINS, URI)
    right = kit(tmp_path, held, authority)
    locked = held.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    strange = ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for path in (right.path("crt"), right.path("key"), right.authority_path):
        content = path.read_bytes()
        for damaged in (b"", b"\0", content[: len(content) // 2], content.replace(b"M", b"N"), locked):
            path.write_bytes(damaged)
            assert "copy the whole kit" in line_of(right)
        path.unlink()
        assert f"expected a kit's file {path}, got No such file" in line_of(right)
        path.write_bytes(content)
    for key in (strange, signed("anna", authority).key_pem):
        right.path("key").write_bytes(key)
        assert "does not belong to" in line_of(right)


def test_an_authority_that_has_expired_is_one_line(tmp_path: Path) -> None:
    old = signed("authority", days=(-30, -1))
    told = r"the authority's certificate .* has expired on .*: make all kits in a new folder"
    assert re.fullmatch(told, line_of(kit(tmp_path, signed("anna", old, JOINS, URI), old)))


# The server


def test_both_take_each_other(tmp_path: Path) -> None:
    """By name and by address, and the server hears the name that the certificate holds."""
    for host in ("localhost", "127.0.0.1", "::1"):
        server, anna = make_kits(["anna"], host, tmp_path / host.replace(":", "_"))
        held = held_in(server)
        with served(held, server.authority, host=f"[{host}]" if ":" in host else host) as port:
            anna = replace(anna, port=port)
            look(anna)
            assert say(anna) == "anna"


def test_a_server_that_is_none_is_refused_with_the_reason(tmp_path: Path, authority: Signed, other: Signed) -> None:
    """One of another authority, expired, not yet valid, of another name; and a site that poses as one."""
    cases = {
        "is of another authority than": signed("server", other, SERVES, LOCALHOST),
        "is of another authority ": signed("server", None, SERVES, LOCALHOST),
        "has expired on 20": signed("server", authority, SERVES, LOCALHOST, (-9, -0.1)),
        "is not valid before 20": signed("server", authority, SERVES, LOCALHOST, (1, 9)),
        "is for elsewhere.org, not for localhost": signed("server", authority, SERVES, x509.DNSName("elsewhere.org")),
        "is for 127.0.0.1, not for localhost": signed(
            "localhost", authority, SERVES, x509.IPAddress(ip_address("127.0.0.1"))
        ),
        "is not made for a server": signed("localhost", authority, JOINS, URI),
        "is not made for a server: ": signed("localhost", authority, JOINS, LOCALHOST),
    }
    anna = kit(tmp_path, signed("anna", authority, JOINS, URI), authority)
    for told, held in cases.items():
        with served(held, authority.pem) as port:
            there = replace(anna, port=port)
            line = line_of(there, look)
            assert line.startswith(f"the certificate of the server at localhost:{port} {told}"), line
            assert say(there) in ("UNAVAILABLE", "UNAUTHENTICATED"), told


def test_a_site_that_the_server_does_not_take_is_told(tmp_path: Path, authority: Signed, other: Signed) -> None:
    """The server knows another authority; gRPC closes the connection after the handshake, and says nothing."""
    anna = kit(tmp_path, signed("anna", authority, JOINS, URI), authority)
    with served(signed("server", authority, SERVES, LOCALHOST), other.pem) as port:
        anna = replace(anna, port=port)
        assert line_of(anna, look).startswith(
            f"the server at localhost:{port} refuses the certificate {anna.path('crt')}"
        )
        assert say(anna) == "UNAVAILABLE"


def test_a_refusal_in_an_alert_is_told_too(tmp_path: Path, authority: Signed, other: Signed) -> None:
    """OpenSSL's servers send an alert after a handshake of TLS 1.3."""
    held = kit(tmp_path, signed("server", authority, SERVES, LOCALHOST), authority, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(held.path("crt"), held.path("key"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=other.pem.decode())
    anna = kit(tmp_path, signed("anna", authority, JOINS, URI), authority)
    with listening(lambda peer: context.wrap_socket(peer, server_side=True)) as port:
        assert "refuses the certificate" in line_of(replace(anna, port=port), look)


def test_the_own_kit_is_checked_before_a_server_is_called(tmp_path: Path, authority: Signed) -> None:
    anna = kit(tmp_path, signed("anna", authority, JOINS, URI, (-9, -0.1)), authority, port=1)
    assert "has expired on" in line_of(anna, look)


def test_who_is_revoked_is_refused_by_a_server_that_runs_and_comes_back_renewed(tmp_path: Path) -> None:
    server, anna, berlin = make_kits(["anna", "berlin"], "localhost", tmp_path)
    held = held_in(server)
    with served(held, server.authority, lambda: revoked_serials(server)) as port:
        anna, berlin = replace(anna, port=port), replace(berlin, port=port)
        assert (say(anna), say(berlin)) == ("anna", "berlin")
        revoke(["anna"], tmp_path)
        assert (say(anna), say(berlin)) == ("PERMISSION_DENIED", "berlin")
        renew(["anna"], tmp_path)
        assert (say(anna), say(berlin)) == ("anna", "berlin")


# Who answers otherwise


def test_nobody_and_who_says_nothing_can_be_waited_for(tmp_path: Path, authority: Signed) -> None:
    """No listener, one that is silent, one that closes as a forwarded port does, one that dies half-way."""
    anna = kit(tmp_path, signed("anna", authority, JOINS, URI), authority, port=1)
    with pytest.raises(ConnectionRefusedError):
        look(anna)
    for answer in (lambda peer: time.sleep(0.5), lambda peer: None, lambda peer: peer.recv(100)):
        with listening(answer) as port, pytest.raises(OSError):  # noqa: PT011  # of several kinds
            look_at_server(replace(anna, port=port), 0.2)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_who_speaks_no_tls_or_an_old_one_is_one_line(tmp_path: Path, authority: Signed) -> None:
    anna = kit(tmp_path, signed("anna", authority, JOINS, URI), authority)
    server = kit(tmp_path, signed("server", authority, SERVES, LOCALHOST), authority, "server")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.load_cert_chain(server.path("crt"), server.path("key"))
    noise = bytes(range(256)) * 20
    answers: list[Callable[[socket.socket], object]] = [
        lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n") or peer.recv(1000),
        lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n") or peer.recv(1000),
        lambda peer: peer.sendall(noise) or peer.recv(1000),
        lambda peer: old.wrap_socket(peer, server_side=True),
    ]
    for answer in answers:
        with listening(answer) as port:
            line = line_of(replace(anna, port=port), look)
            assert line.startswith(f"expected TLS 1.2 or newer of a server of fl-lightning at localhost:{port}, got"), (
                line
            )


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_certificates_that_cannot_be_read_are_one_line(tmp_path: Path, authority: Signed) -> None:
    """Every prefix of a right one, and each with one byte changed: damaged, of another authority, or still right."""
    anna = kit(tmp_path, signed("anna", authority, JOINS, URI), authority)
    right = signed("server", authority, SERVES, LOCALHOST).certificate.public_bytes(Encoding.DER)
    changed = [right[:place] + bytes([right[place] ^ 255]) + right[place + 1 :] for place in range(len(right))]
    for shown in [*(right[:length] for length in range(0, len(right), 7)), *changed]:
        with pytest.raises(ConfigurationError, match=r"a damaged one|another authority"):
            handshake._check(handshake._load(x509.load_der_x509_certificate, shown, "x"), anna, "server", "x")
