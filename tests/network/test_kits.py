"""Kits: what their certificates say, read by cryptography's own verifiers; renewed, revoked, and with a passphrase."""

import re
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from ipaddress import ip_address
from pathlib import Path

import pytest
from lib.command import refused, run

from fl_lightning.errors import ConfigurationError
from fl_lightning.network import keys, options

pytest.importorskip("cryptography")
from cryptography import x509
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from fl_lightning.network import kits
from fl_lightning.network.kits import Kit, make_kits, renew, revoke, revoked_serials, server_kit, site_kit

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


def certificate(kit: Kit) -> x509.Certificate:
    return x509.load_pem_x509_certificate(kit.certificate)


def store(out: Path) -> Store:
    return Store([x509.load_pem_x509_certificate((out / "authority/authority.crt").read_bytes())])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_certificates_are_what_verifiers_of_the_web_take(tmp_path: Path) -> None:
    """The server's is for its host, a site's for nobody's host; neither serves in the other's place."""
    before = datetime.now(UTC)
    server, anna, berlin = make_kits(["anna", "berlin"], "fl.example.org", tmp_path, 8003)
    assert [kit.folder for kit in (server, anna, berlin)] == [tmp_path / name for name in ("server", "anna", "berlin")]
    as_server = PolicyBuilder().store(store(tmp_path)).build_server_verifier(x509.DNSName("fl.example.org"))
    as_site = PolicyBuilder().store(store(tmp_path)).build_client_verifier()
    assert len(as_server.verify(certificate(server), [])) == 2
    for site in (anna, berlin):
        assert len(as_site.verify(certificate(site), []).chain) == 2
        with pytest.raises(x509.verification.VerificationError):
            as_server.verify(certificate(site), [])
    with pytest.raises(x509.verification.VerificationError):
        as_site.verify(certificate(server), [])
    assert len({certificate(kit).serial_number for kit in (server, anna, berlin)}) == 3
    for kit in (server, anna, berlin):
        (name,) = certificate(kit).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert name.value == kit.name
        end = certificate(kit).not_valid_after_utc
        assert timedelta(0) <= end - before.replace(microsecond=0) - 730 * DAY < HOUR
        assert certificate(kit).not_valid_before_utc < before
    authority = x509.load_pem_x509_certificate((tmp_path / "authority/authority.crt").read_bytes())
    assert timedelta(0) <= authority.not_valid_after_utc - before.replace(microsecond=0) - 3650 * DAY < HOUR
    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert limits == x509.BasicConstraints(ca=True, path_length=0), "it makes no other authorities"
    assert site_kit(tmp_path / "anna") == anna == Kit(tmp_path / "anna", "anna", "fl.example.org", 8003)
    assert server_kit(tmp_path / "server") == server


def test_kits_are_their_owners_alone(tmp_path: Path) -> None:
    make_kits(["anna"], "localhost", tmp_path)
    files = {
        "anna": {"authority.crt", "kit.yaml", "site.crt", "site.key"},
        "server": {"authority.crt", "kit.yaml", "revoked.txt", "server.crt", "server.key"},
        "authority": {"authority.crt", "authority.key", "issued.txt", "kit.yaml", "revoked.txt"},
    }
    assert {folder.name: {path.name for path in folder.iterdir()} for folder in tmp_path.iterdir()} == files
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(
    ("host", "address", "name"),
    [
        ("192.0.2.7", "192.0.2.7:8002", x509.IPAddress(ip_address("192.0.2.7"))),
        ("2001:db8::7", "[2001:db8::7]:8002", x509.IPAddress(ip_address("2001:db8::7"))),
        ("FL.example.org", "FL.example.org:8002", x509.DNSName("fl.example.org")),
    ],
)
def test_a_server_has_a_name_or_an_address(tmp_path: Path, host: str, address: str, name: x509.GeneralName) -> None:
    server, _ = make_kits(["anna"], host, tmp_path)
    assert server.address == address
    names = certificate(server).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [name]


def test_sites_may_be_added_and_the_first_kits_stay(tmp_path: Path) -> None:
    """A kit that has been given away is not made again."""
    make_kits(["anna"], "localhost", tmp_path, 8002)
    first = contents(tmp_path)
    (tmp_path / "anna").rename(tmp_path.with_name("given"))
    (berlin,) = make_kits(["anna", "berlin"], None, tmp_path, days=3)
    assert (berlin.name, berlin.host, berlin.port) == ("berlin", "localhost", 8002)
    assert certificate(berlin).not_valid_after_utc < datetime.now(UTC) + 3 * DAY
    (tmp_path.with_name("given")).rename(tmp_path / "anna")
    changed = {name for name, content in contents(tmp_path).items() if first.get(name) != content}
    assert changed == {"authority/issued.txt", *(f"berlin/{path.name}" for path in berlin.folder.iterdir())}


@pytest.mark.parametrize(
    ("sites", "host", "port", "days", "told"),
    [
        (["server"], "localhost", 8002, 730, "expected sites' names of at most 64 letters"),
        (["authority"], "localhost", 8002, 730, "expected sites' names of at most 64 letters"),
        (["a", "a"], "localhost", 8002, 730, "expected sites' names of at most 64 letters"),
        (["a b"], "localhost", 8002, 730, "expected sites' names of at most 64 letters"),
        (["a\n"], "localhost", 8002, 730, "expected sites' names of at most 64 letters"),
        (["../x"], "localhost", 8002, 730, "expected sites' names of at most 64 letters"),
        ([""], "localhost", 8002, 730, "expected sites' names of at most 64 letters"),
        (["a" * 65], "localhost", 8002, 730, "expected sites' names of at most 64 letters"),
        (["a"], "localhost", 0, 730, "expected a port from 1 to 65535, got 0"),
        (["a"], "localhost", 99_999, 730, "expected a port from 1 to 65535, got 99999"),
        (["a"], "localhost", 8002, 0, "expected --days from 1 to 3650, the authority's life, got 0"),
        (["a"], "localhost", 8002, 10**12, "expected --days from 1 to 3650, the authority's life, got 1000000000000"),
        (["a"], "localhost:8002", 8002, 730, "expected a host name or an address, .*, got 'localhost:8002'"),
        (["a"], "https://x.org", 8002, 730, "expected a host name or an address"),
        (["a"], "192.168.1.300", 8002, 730, "expected a host name or an address"),
        (["a"], "*.example.org", 8002, 730, "expected a host name or an address"),
        (["a"], "", 8002, 730, "expected a host name or an address"),
        (["a"], None, 8002, 730, "expected the name or address by which the sites reach the server: --server HOST"),
    ],
)
def test_kits_that_cannot_be_are_refused_before_anything_is_made(
    tmp_path: Path, sites: list[str], host: str | None, port: int, days: int, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make_kits(sites, host, tmp_path / "kits", port, days)
    assert not (tmp_path / "kits").exists()


def test_a_server_elsewhere_is_none_of_these_kits(tmp_path: Path) -> None:
    make_kits(["anna"], "localhost", tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ConfigurationError, match=r"expected the server at localhost:8002, .*, got other:8002"):
        make_kits(["berlin"], "other", tmp_path)
    with pytest.raises(ConfigurationError, match="expected --server and --port in a renewal of server, got anna"):
        renew(["anna"], tmp_path, "other")
    (tmp_path / "cork").mkdir()
    with pytest.raises(ConfigurationError, match=r"expected kits of .*authority alone in .*, got cork"):
        make_kits(["cork"], None, tmp_path)
    assert contents(tmp_path) == before


def test_no_certificate_outlives_its_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 days; 730 are asked for. Then the authority makes no more."""
    with monkeypatch.context() as patched:
        patched.setattr(kits, "AUTHORITY_DAYS", 20)
        make_kits(["anna"], "localhost", tmp_path, days=20)
    (berlin,) = make_kits(["berlin"], None, tmp_path)
    authority = x509.load_pem_x509_certificate(berlin.authority)
    assert certificate(berlin).not_valid_after_utc == authority.not_valid_after_utc < datetime.now(UTC) + 20 * DAY
    monkeypatch.setattr(kits, "datetime", InAMonth)
    told = rf"authority has expired on {authority.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: make all kits in a new"
    with pytest.raises(ConfigurationError, match=told):
        renew(["anna"], tmp_path)


class InAMonth(datetime):
    """A clock."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + 30 * DAY


def test_a_renewal_keeps_the_authority_and_the_old_numbers_count(tmp_path: Path) -> None:
    server, anna = make_kits(["anna"], "localhost", tmp_path)
    before = certificate(anna), anna.key, anna.authority
    (again,) = renew(["anna"], tmp_path, days=10)
    assert again == anna
    assert anna.authority == before[2]
    assert anna.key != before[1]
    assert certificate(anna).serial_number != before[0].serial_number
    assert certificate(anna).not_valid_after_utc < datetime.now(UTC) + 10 * DAY
    verifier = PolicyBuilder().store(store(tmp_path)).build_client_verifier()
    for each in (before[0], certificate(anna)):
        verifier.verify(each, [])
    assert revoked_serials(server) == set()
    with pytest.raises(ConfigurationError, match=r"expected names in .*issued\.txt, got zoe, who has had no cert"):
        renew(["zoe"], tmp_path)


def test_a_renewed_server_may_have_moved(tmp_path: Path) -> None:
    """Sites of later get the new place; those of before have theirs in a text file."""
    make_kits(["anna"], "localhost", tmp_path)
    (server,) = renew(["server"], tmp_path, "fl.example.org", 9000)
    verifier = PolicyBuilder().store(store(tmp_path)).build_server_verifier(x509.DNSName("fl.example.org"))
    verifier.verify(certificate(server), [])
    _, berlin = server, *make_kits(["berlin"], None, tmp_path)
    assert berlin.address == server.address == "fl.example.org:9000"
    assert (tmp_path / "anna/kit.yaml").read_text() == "name: anna\nhost: localhost\nport: 8002\n"


def test_what_is_revoked_is_every_number_until_now(tmp_path: Path) -> None:
    """Anna's two certificates; not berlin's, and not the one that anna gets afterwards."""
    server, anna, _ = make_kits(["anna", "berlin"], "localhost", tmp_path)
    first = certificate(anna).serial_number
    renew(["anna"], tmp_path)
    second = certificate(anna).serial_number
    assert revoked_serials(server) == set()
    revoke(["anna"], tmp_path)
    assert revoked_serials(server) == {first, second}
    renew(["anna"], tmp_path)
    assert certificate(anna).serial_number not in revoked_serials(server)
    lines = (tmp_path / "server/revoked.txt").read_text().splitlines()[1:]
    assert [re.sub("[0-9]", "0", line[40:]) for line in lines] == [", anna, 0000-00-00 00:00 UTC"] * 2
    assert [int(line[:40], 16) for line in lines] == [first, second]
    revoke(["anna"], tmp_path)
    assert len((tmp_path / "server/revoked.txt").read_text().splitlines()) == 1 + len(revoked_serials(server)) == 4


def test_a_server_elsewhere_gets_the_list_as_a_file(tmp_path: Path) -> None:
    server, anna = make_kits(["anna"], "localhost", tmp_path)
    (tmp_path / "server").rename(tmp_path / "away")
    listed = revoke(["anna"], tmp_path)
    assert not (tmp_path / "server").exists()
    away = server_kit(tmp_path / "away")
    assert revoked_serials(away) == set()
    (tmp_path / "away/revoked.txt").write_bytes(listed.read_bytes())
    assert revoked_serials(away) == {certificate(anna).serial_number}
    renew(["server"], tmp_path)
    assert revoked_serials(server) == {certificate(anna).serial_number}, "a new kit of the server has the list"


def test_who_cannot_be_revoked(tmp_path: Path) -> None:
    make_kits(["anna"], "localhost", tmp_path)
    with pytest.raises(ConfigurationError, match="expected names of sites, which have no list"):
        revoke(["server"], tmp_path)
    with pytest.raises(ConfigurationError, match="got zoe, who has had no certificate"):
        revoke(["anna", "zoe"], tmp_path)
    assert revoked_serials(server_kit(tmp_path / "server")) == set()


@pytest.mark.parametrize("line", ["4f0c", "anna, 4f0c, 2026-01-01", "\0\0\0"])
def test_a_damaged_list_lets_nobody_in(tmp_path: Path, line: str) -> None:
    server, _ = make_kits(["anna"], "localhost", tmp_path)
    with (tmp_path / "server/revoked.txt").open("a") as file:
        file.write(line)
    with pytest.raises(ConfigurationError, match=r"expected lines of a serial number .* in .*revoked\.txt, got '"):
        revoked_serials(server)
    (tmp_path / "server/revoked.txt").unlink()
    with pytest.raises(ConfigurationError, match=r"expected a kit's file .*revoked\.txt, got No such file"):
        revoked_serials(server)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("name: berlin\nhost: localhost\n", "expected a name, a host and a port"),
        ("name: berlin\nhost: localhost\nport: many\n", "expected a name, a host and a port"),
        ("name: berlin\nhost: localhost\nport: true\n", "expected a name, a host and a port"),
        ("name: berlin\nhost: localhost\nport: 0\n", "expected a port from 1 to 65535, got 0"),
        ("name: berlin\nhost: .x\nport: 8002\n", "expected a host name or an address"),
        ("name: server\nhost: localhost\nport: 8002\n", "expected a site's kit in .*, got that of 'server'"),
        ("- nothing\n", "expected a name, a host and a port"),
        ("name: [\n", "expected a site's kit in .*, got a damaged"),
        ("\0", "expected a site's kit in .*, got a damaged"),
        (None, r"expected a site's kit in .*, got no file .*kit\.yaml: fl-lightning keys makes kits"),
    ],
)
def test_a_folder_without_a_kit_is_one_line(tmp_path: Path, content: str | None, told: str) -> None:
    if content is not None:
        (tmp_path / "kit.yaml").write_text(content)
    with pytest.raises(ConfigurationError, match=told) as caught:
        site_kit(tmp_path)
    assert str(caught.value).isprintable()


def test_the_authoritys_key_has_a_passphrase_if_asked(tmp_path: Path) -> None:
    make_kits(["anna"], "localhost", tmp_path, passphrase=b"open sesame")
    (head, *_) = (tmp_path / "authority/authority.key").read_text().splitlines()
    assert head == "-----BEGIN ENCRYPTED PRIVATE KEY-----"
    before = contents(tmp_path)
    for passphrase, told in ((None, "has a passphrase: give --passphrase"), (b"x", "expected the passphrase of")):
        with pytest.raises(ConfigurationError, match=told):
            make_kits(["berlin"], None, tmp_path, passphrase=passphrase)
        with pytest.raises(ConfigurationError, match=told):
            renew(["anna"], tmp_path, passphrase=passphrase)
    assert contents(tmp_path) == before
    make_kits(["berlin"], None, tmp_path, passphrase=b"open sesame")
    make_kits(["anna"], "localhost", tmp_path / "other")
    with pytest.raises(ConfigurationError, match="has none: leave --passphrase out"):
        renew(["anna"], tmp_path / "other", passphrase=b"open sesame")


# The command


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_makes_renews_and_revokes(there: Path) -> None:
    made = run("keys", "--sites", "anna", "berlin", "--server", "localhost", "--out", "kits").out.splitlines()
    assert made[0] == "kits: kits/server, kits/anna, kits/berlin"
    anna = site_kit(Path("kits/anna"))
    assert made[1].startswith(
        f"their certificates expire on {certificate(anna).not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    )
    assert abs(certificate(anna).not_valid_after_utc - datetime.now(UTC) - 730 * DAY) < HOUR
    assert made[2].startswith("keep kits/authority to yourself")
    more = run("keys", "--sites", "anna", "cork", "--out", "kits").out.splitlines()
    assert more[:2] == ["kits: kits/cork", "anna has had a kit before: --renew makes a new one"]
    first = certificate(anna).serial_number
    renewed = run("keys", "--renew", "anna", "--out", "kits", "--days", 30).out
    assert "older certificates serve until they expire" in renewed
    assert revoked_serials(server_kit(Path("kits/server"))) == set()
    assert "copy kits/authority/revoked.txt" in run("keys", "--revoke", "anna", "--out", "kits").out
    assert revoked_serials(server_kit(Path("kits/server"))) == {first, certificate(anna).serial_number}
    assert "give one of --sites, --renew, --revoke" in refused("keys", "--out", "kits")
    assert "not allowed with" in refused("keys", "--renew", "anna", "--revoke", "anna", "--out", "kits")


def test_a_passphrase_comes_from_the_environment(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ("keys", "--sites", "anna", "--server", "localhost", "--out", "kits")
    assert "or FL_LIGHTNING_PASSPHRASE to be set" in refused(*line, "--passphrase"), "no terminal"
    monkeypatch.setenv("FL_LIGHTNING_PASSPHRASE", "open sesame")
    assert run(*line, "--passphrase").status == 0
    make_kits(["berlin"], None, Path("kits"), passphrase=b"open sesame")
    assert "has a passphrase: give --passphrase" in refused("keys", "--renew", "anna", "--out", "kits")
    monkeypatch.setenv("FL_LIGHTNING_PASSPHRASE", "x" * 1024)
    assert "expected a passphrase of 1 to 1023 bytes" in refused(*line, "--passphrase")


def test_a_passphrase_is_asked_for_twice_at_first(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["one", "two", "one", "one", "one", ""]
    monkeypatch.setattr(keys, "getpass", lambda question: answers.pop(0))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    line = ("keys", "--sites", "anna", "--server", "localhost", "--out", "kits", "--passphrase")
    assert refused(*line) == "expected the same passphrase twice, got two"
    assert run(*line).status == 0
    assert run("keys", "--renew", "anna", "--out", "kits", "--passphrase").status == 0
    assert "expected a passphrase of 1 to" in refused("keys", "--renew", "anna", "--out", "kits", "--passphrase")
    assert answers == []


def test_packages_that_are_not_installed_are_one_line(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    told = "expected grpc to be installed: pip install fl-lightning[network]"
    assert refused("keys", "--renew", "anna", "--out", "kits") == told
    for command in ("serve", "join"):
        assert refused(command, "--config", "digits_gh.yaml") == told
