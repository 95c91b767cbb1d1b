"""Kits: one folder for the server and one for each site, with its certificate and key, signed by one authority."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fl_lightning.errors import ConfigurationError
from fl_lightning.runs.folder.yaml_text import read_yaml

AUTHORITY = "authority"  # folder with the key that signs certificates, and name of its files
SERVER = "server"
SITE = "site"
KIT = "kit.yaml"  # of a kit: its name, and where the server is
ISSUED = "issued.txt"  # of the authority: each certificate that it has signed
REVOKED = "revoked.txt"  # of the authority and of the server: the certificates that the server refuses
HEADS = {
    ISSUED: "# serial number, name, valid from, valid until (UTC) of each certificate that this authority has signed\n",
    REVOKED: "# serial number, name, revoked on (UTC) of each certificate that the server refuses\n",
}
PLACE = {"name": str, "host": str, "port": int}  # what a kit.yaml says
PORT = 8002
LAST_PORT = 65535
DAYS = 730  # a certificate's life
AUTHORITY_DAYS = 3650
CLOCKS = timedelta(hours=1)  # by which the clocks of machines may differ
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
HOST = re.compile(r"(?![0-9.]+$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")  # none that is a mistyped address


@dataclass(frozen=True)
class Kit:
    """Names a kit's files, and holds what its kit.yaml says.

    Attributes:
        folder: the kit.
        name: the name in the certificate: ``server``, or the site's.
        host: the server's name or address, as the sites reach it.
        port: the server's port.
    """

    folder: Path
    name: str
    host: str
    port: int

    @property
    def role(self) -> str:
        """Whose kit it is, as its files are named: ``server``, ``site``, or ``authority`` for that which signs them."""
        return self.name if self.name in (SERVER, AUTHORITY) else SITE

    @property
    def address(self) -> str:
        """The server's host and port, as a network library takes them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def certificate(self) -> bytes:
        """The certificate, PEM."""
        return _content(self.path("crt"))

    @property
    def key(self) -> bytes:
        """The certificate's key, PEM."""
        return _content(self.path("key"))

    @property
    def authority(self) -> bytes:
        """The authority's certificate, PEM."""
        return _content(self.authority_path)

    @property
    def authority_path(self) -> Path:
        """Path of the authority's certificate."""
        return self.folder / f"{AUTHORITY}.crt"

    def path(self, suffix: str) -> Path:
        """Return the path of the certificate, ``crt``, or of its key, ``key``."""
        return self.folder / f"{self.role}.{suffix}"


def server_kit(folder: Path) -> Kit:
    """Read a server's kit.

    Raises:
        ConfigurationError: the folder holds no server's kit.
    """
    return _read_kit(folder, SERVER)


def site_kit(folder: Path) -> Kit:
    """Read a site's kit.

    Raises:
        ConfigurationError: the folder holds no site's kit.
    """
    return _read_kit(folder, SITE)


def revoked_serials(kit: Kit) -> set[int]:
    """Read the serial numbers of the certificates that the server refuses, anew each time.

    Raises:
        ConfigurationError: the server's kit has no list, or a damaged one.
    """
    return {*_read_list(kit.folder / REVOKED)}


def make_kits(
    sites: Sequence[str],
    server_host: str | None,
    out: Path,
    port: int | None = None,
    days: int = DAYS,
    passphrase: bytes | None = None,
) -> list[Kit]:
    """Make a kit for the server and one for each site; who has had one keeps it.

    The key that signs certificates stays in ``out/authority``: with the same ``out``, sites may be added later.

    Args:
        sites: the sites' names.
        server_host: the host name or address by which the sites reach the server; None for that of before.
        out: the folder of the kits.
        port: the server's port; None for that of before, at first 8002.
        days: the life of the certificates, which end with the authority's at the latest.
        passphrase: with which the authority's key is encrypted; None for a key that is not.

    Returns:
        The kits that are new.

    Raises:
        ConfigurationError: a name is taken twice, or none that a kit can have, or there is no such port or host, or the
            server has been made for another one, or the passphrase is wrong.
    """
    taken = {SERVER, AUTHORITY}
    for site in sites:
        if not NAME.fullmatch(site) or site in taken:
            raise ConfigurationError(
                f"expected sites' names of at most 64 letters, digits, - and _, each once and none of {SERVER} and "
                f"{AUTHORITY}, got {site!r}"
            )
        taken.add(site)
    _check_days(days)
    _check_place(server_host, port)
    is_new = not (out / AUTHORITY).exists()
    issued = set[str]() if is_new else {*_read_list(out / AUTHORITY / ISSUED).values()}
    names = [name for name in (SERVER, *sites) if name not in issued]
    for name in names:
        if (out / name).exists():
            raise ConfigurationError(f"expected kits of {out / AUTHORITY} alone in {out}, got {name}: name another one")
    if is_new:
        if server_host is None:
            raise ConfigurationError("expected the name or address by which the sites reach the server: --server HOST")
        authority = _new_authority(Kit(out / AUTHORITY, AUTHORITY, server_host, port or PORT), passphrase)
    else:
        authority = _read_authority(out / AUTHORITY, passphrase)
        if authority.moved(server_host, port) != authority:
            raise ConfigurationError(
                f"expected the server at {authority.kit.address}, as in {authority.kit.folder / KIT}, got "
                f"{authority.moved(server_host, port).kit.address}: --renew {SERVER} moves the server"
            )
    return [authority.make(name, days) for name in names]


def renew(
    names: Sequence[str],
    out: Path,
    server_host: str | None = None,
    port: int | None = None,
    days: int = DAYS,
    passphrase: bytes | None = None,
) -> list[Kit]:
    """Give the server or sites new certificates and keys; the authority stays.

    Certificates of before serve on until they expire, unless they are revoked.

    Args:
        names: ``server``, or names of sites.
        out: the folder of the kits.
        server_host: the server's new name or address, in a renewal of the server; None for that of before.
        port: the server's new port, in a renewal of the server; None for that of before.
        days: the life of the certificates, which end with the authority's at the latest.
        passphrase: of the authority's key; None for a key without one.

    Raises:
        ConfigurationError: somebody has had no kit yet, or there is no such port or host, or the server moves without
            being renewed, or the passphrase is wrong.
    """
    _check_days(days)
    _check_place(server_host, port)
    _certificates_of(names, out)
    authority = _read_authority(out / AUTHORITY, passphrase).moved(server_host, port)
    if (server_host or port) and SERVER not in names:
        raise ConfigurationError(f"expected --server and --port in a renewal of {SERVER}, got {', '.join(names)}")
    _write_place(authority.kit)
    return [authority.make(name, days) for name in dict.fromkeys(names)]


def revoke(names: Sequence[str], out: Path) -> Path:
    """Let the server refuse all certificates that sites have had until now.

    Args:
        names: the sites' names.
        out: the folder of the kits.

    Returns:
        The list, which is copied to the server's kit if that is in ``out``.

    Raises:
        ConfigurationError: a site has had no kit yet, or the server is named.
    """
    if SERVER in names:
        raise ConfigurationError(
            "expected names of sites, which have no list that could name the server: if its key is stolen, make all "
            "kits anew in another folder"
        )
    revoked = out / AUTHORITY / REVOKED
    known = _read_list(revoked)
    for serial, name in _certificates_of(names, out).items():
        if serial not in known:
            _append(revoked, f"{serial:040x}, {name}, {written(datetime.now(UTC))}\n")
    if (out / SERVER).is_dir():
        _write(out / SERVER / REVOKED, _content(revoked))
    return revoked


def expiry(kit: Kit) -> str:
    """Return the date on which a kit's certificate expires."""
    return written(x509.load_pem_x509_certificate(kit.certificate).not_valid_after_utc)


def days_left(kit: Kit) -> int:
    """Return the number of whole days until a kit's certificate expires."""
    return (x509.load_pem_x509_certificate(kit.certificate).not_valid_after_utc - datetime.now(UTC)).days


def written(date: datetime) -> str:
    """Write a date in UTC."""
    return f"{date:%Y-%m-%d %H:%M} UTC"


def general_name(host: str) -> x509.GeneralName:
    """Return the form in which a certificate holds a server's name or address.

    Raises:
        ConfigurationError: a host cannot have that name.
    """
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if HOST.fullmatch(host):
            return x509.DNSName(host.lower())
    raise ConfigurationError(f"expected a host name or an address, as in server.example.org, got {host!r}")


@dataclass(frozen=True)
class _Authority:
    """Signs certificates.

    Attributes:
        kit: its own folder, which says where the server is.
        certificate: its own certificate.
        key: the key with which it signs.
    """

    kit: Kit
    certificate: x509.Certificate
    key: EllipticCurvePrivateKey

    def moved(self, host: str | None, port: int | None) -> _Authority:
        """Return the authority of a server elsewhere; None for the host or port of before."""
        return replace(self, kit=replace(self.kit, host=host or self.kit.host, port=port or self.kit.port))

    def make(self, name: str, days: int) -> Kit:
        """Sign a certificate, enter it into the record, and write the kit that holds it, beside the authority."""
        now = datetime.now(UTC)
        until = min(now + timedelta(days=days), self.certificate.not_valid_after_utc)
        if until < now:
            raise ConfigurationError(
                f"the authority in {self.kit.folder} has expired on {written(until)}: make all kits in a new folder"
            )
        kit = replace(self.kit, folder=self.kit.folder.with_name(name), name=name)
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        known_as = general_name(kit.host)
        if kit.role == SITE:  # whose name must be none of a server
            usage = ExtendedKeyUsageOID.CLIENT_AUTH
            known_as = x509.UniformResourceIdentifier(f"urn:fl-lightning:site:{name}")
        key = generate_private_key(SECP256R1())
        built = _builder(name, key, self.certificate.subject, self.key, until)
        built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        built = built.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        built = built.add_extension(x509.SubjectAlternativeName([known_as]), critical=False)
        certificate = built.sign(self.key, hashes.SHA256())
        dates = f"{written(certificate.not_valid_before_utc)}, {written(certificate.not_valid_after_utc)}"
        _append(self.kit.folder / ISSUED, f"{certificate.serial_number:040x}, {name}, {dates}\n")
        _write_kit(kit, certificate, key, self.certificate)
        if kit.role == SERVER:
            _write(kit.folder / REVOKED, _content(self.kit.folder / REVOKED))
        return kit


def _new_authority(kit: Kit, passphrase: bytes | None) -> _Authority:
    name = "fl-lightning authority"
    key = generate_private_key(SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = _builder(name, key, subject, key, datetime.now(UTC) + timedelta(days=AUTHORITY_DAYS))
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys(("digital_signature", *others, "encipher_only", "decipher_only"), False)
    built = built.add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
    certificate = built.sign(key, hashes.SHA256())
    _write_kit(kit, certificate, key, certificate, passphrase)
    for file, head in HEADS.items():
        _write(kit.folder / file, head.encode())
    return _Authority(kit, certificate, key)


def _read_authority(folder: Path, passphrase: bytes | None) -> _Authority:
    kit = _read_kit(folder, AUTHORITY)
    path = kit.path("key")
    try:
        certificate = x509.load_pem_x509_certificate(kit.certificate)
        key = load_pem_private_key(kit.key, passphrase)
    except TypeError:  # a passphrase is needed and not given, or the other way round
        given = "has a passphrase: give --passphrase" if passphrase is None else "has none: leave --passphrase out"
        raise ConfigurationError(f"the authority's key {path} {given}") from None
    except ValueError as error:
        raise ConfigurationError(f"expected the passphrase of {path}, got another one, or a damaged file") from error
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigurationError(f"expected the key of {kit.path('crt')} in {path}, got another one")
    return _Authority(kit, certificate, key)


def _builder(
    name: str, key: EllipticCurvePrivateKey, issuer: x509.Name, signer: EllipticCurvePrivateKey, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - CLOCKS)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def _check_days(days: int) -> None:
    if not 1 <= days <= AUTHORITY_DAYS:
        raise ConfigurationError(f"expected --days from 1 to {AUTHORITY_DAYS}, the authority's life, got {days}")


def _check_place(host: str | None, port: int | None) -> None:
    if port is not None and not 1 <= port <= LAST_PORT:
        raise ConfigurationError(f"expected a port from 1 to {LAST_PORT}, got {port}")
    if host is not None:
        general_name(host)


def _certificates_of(names: Sequence[str], out: Path) -> dict[int, str]:
    """Return the names by the serial numbers of all certificates that some have had."""
    path = out / AUTHORITY / ISSUED
    issued = _read_list(path)
    for name in names:
        if name not in issued.values():
            raise ConfigurationError(f"expected names in {path}, got {name}, who has had no certificate")
    return {serial: name for serial, name in issued.items() if name in names}


def _read_kit(folder: Path, role: str) -> Kit:
    path = folder / KIT
    try:
        said = read_yaml(path, path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"expected a {role}'s kit in {folder}, got no file {path}: fl-lightning keys makes kits"
        ) from None
    except (OSError, ValueError, ConfigurationError):
        raise ConfigurationError(f"expected a {role}'s kit in {folder}, got a damaged {path}") from None
    if not isinstance(said, dict) or {name: type(value) for name, value in said.items()} != PLACE:
        raise ConfigurationError(f"expected a name, a host and a port (a number) in {path}, got other lines")
    kit = Kit(folder, **said)
    if kit.role != role:
        raise ConfigurationError(f"expected a {role}'s kit in {folder}, got that of {kit.name!r}")
    _check_place(kit.host, kit.port)
    return kit


def _read_list(path: Path) -> dict[int, str]:
    """Read names by serial numbers."""
    found = {}
    for line in _content(path).decode(errors="replace").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        try:
            serial, name, *_ = line.split(",")
            found[int(serial, 16)] = name.strip()
        except ValueError:
            raise ConfigurationError(
                f"expected lines of a serial number (hexadecimal), a name and dates in {path}, got {line!r}"
            ) from None
    return found


def _append(path: Path, line: str) -> None:
    _write(path, _content(path) + line.encode())


def _write_kit(
    kit: Kit,
    certificate: x509.Certificate,
    key: EllipticCurvePrivateKey,
    authority: x509.Certificate,
    passphrase: bytes | None = None,
) -> None:
    kit.folder.mkdir(parents=True, exist_ok=True)
    kit.folder.chmod(0o700)
    encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    _write(kit.path("key"), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    _write(kit.path("crt"), certificate.public_bytes(Encoding.PEM))
    _write(kit.authority_path, authority.public_bytes(Encoding.PEM))
    _write_place(kit)


def _write_place(kit: Kit) -> None:
    said = {"name": kit.name, "host": kit.host, "port": kit.port}
    _write(kit.folder / KIT, yaml.safe_dump(said, sort_keys=False).encode())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"expected a kit's file {path}, got {error.strerror}: copy the whole kit, or make one"
        ) from error


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, which its owner alone may read."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    part.touch(0o600, exist_ok=False)
    part.write_bytes(content)
    part.replace(path)
