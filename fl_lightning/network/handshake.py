"""What is wrong with a certificate, here or at the server, in one line: what a failed TLS handshake does not say."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from fl_lightning.errors import ConfigurationError
from fl_lightning.network.kits import SERVER, SITE, Kit, general_name, revoked_serials, written

REFUSALS = 3  # in a row, after which the certificate is to blame: a server that ends closes connections, too
PAUSE = 0.5  # seconds between two of them
USAGES = {SERVER: ExtendedKeyUsageOID.SERVER_AUTH, SITE: ExtendedKeyUsageOID.CLIENT_AUTH}
UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension)  # cryptography's, of bad content
Loaded = TypeVar("Loaded")


def check_kit(kit: Kit) -> None:
    """Check the certificates and the key of a server's or a site's kit, and the server's list of what is revoked.

    Raises:
        ConfigurationError: a file is missing or damaged, or the certificate has expired, or is not yet valid, or signed
            by another authority, or somebody else's, or not of the key.
    """
    path = kit.path("crt")
    certificate = _load(x509.load_pem_x509_certificate, kit.certificate, f"a certificate in {path}")
    key = _load(partial(load_pem_private_key, password=None), kit.key, f"a key in {kit.path('key')}")
    if key.public_key() != certificate.public_key():
        raise ConfigurationError(f"the key {kit.path('key')} does not belong to {path}: copy the whole kit")
    subject = certificate.subject.rfc4514_string()
    if subject != f"CN={kit.name}":
        raise ConfigurationError(f"expected the certificate of {kit.name} in {path}, got that of {subject!r}")
    _check(certificate, kit, kit.role, f"the certificate {path}")
    if kit.role == SERVER:
        revoked_serials(kit)


def look_at_server(kit: Kit, timeout: float) -> None:
    """Look whether a site and the server would take each other's certificate, before messages go that way.

    Args:
        kit: the site's kit.
        timeout: seconds to wait for the server, at each step of the handshake.

    Raises:
        ConfigurationError: something is wrong that does not go away by waiting: with the site's kit, or the server's
            certificate; or the server refuses the site's.
        OSError: nobody answers.
    """
    check_kit(kit)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # checked below, to say what is wrong; messages go over connections of gRPC's
    context.load_cert_chain(kit.path("crt"), kit.path("key"))
    context.set_alpn_protocols(["h2"])
    for _ in range(REFUSALS):
        if _is_taken(kit, context, timeout):
            return
        time.sleep(PAUSE)
    raise ConfigurationError(
        f"the server at {kit.address} refuses the certificate {kit.path('crt')}: by its clock, the certificate has "
        "expired or is not yet valid, or the server's kit is of another authority"
    )


def _is_taken(kit: Kit, context: ssl.SSLContext, timeout: float) -> bool:
    """Check the server's certificate, and tell whether the server speaks after it has seen the site's."""
    with socket.create_connection((kit.host, kit.port), timeout) as plain:
        try:
            secured = context.wrap_socket(plain, server_hostname=kit.host)
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLEOFError):  # nobody answers behind a port that is forwarded
                raise
            raise ConfigurationError(
                f"expected TLS 1.2 or newer of a server of fl-lightning at {kit.address}, got {error.reason}"
            ) from error
        with secured:
            shown = secured.getpeercert(binary_form=True) or b""
            what = f"the certificate of the server at {kit.address}"
            _check(_load(x509.load_der_x509_certificate, shown, what), kit, SERVER, what)
            try:
                return bool(secured.recv(1))  # HTTP/2 settings, which the server sends unasked
            except (ssl.SSLError, ConnectionError):
                return False


def _check(certificate: x509.Certificate, kit: Kit, role: str, what: str) -> None:
    """Refuse a certificate of another authority or time, or made for another role or host."""
    named = f"the authority's certificate {kit.authority_path}"
    authority = _load(x509.load_pem_x509_certificate, kit.authority, named)
    _check_dates(authority, named, "make all kits in a new folder")
    try:
        certificate.verify_directly_issued_by(authority)
    except (*UNREADABLE, InvalidSignature) as error:
        raise ConfigurationError(
            f"{what} is of another authority than {kit.authority_path}: use kits that were made in one folder"
        ) from error
    _check_dates(certificate, what, "fl-lightning keys --renew makes a new one")
    if USAGES[role] not in _extension(certificate, x509.ExtendedKeyUsage):
        raise ConfigurationError(f"{what} is not made for a {role}: use the kit of the {role}")
    covered = list(_extension(certificate, x509.SubjectAlternativeName))
    if role == SERVER and general_name(kit.host) not in covered:
        names = ", ".join(str(name.value) for name in covered)
        remedy = f"fl-lightning keys --renew {SERVER} --server {kit.host} makes a new one"
        raise ConfigurationError(f"{what} is for {names}, not for {kit.host}: {remedy}")


def _check_dates(certificate: x509.Certificate, what: str, remedy: str) -> None:
    now = datetime.now(UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise ConfigurationError(f"{what} has expired on {written(end)}: {remedy}")
    if now < begin:
        raise ConfigurationError(
            f"{what} is not valid before {written(begin)}, but this machine's clock says {written(now)}: set it"
        )


def _load(load: Callable[[bytes], Loaded], content: bytes, what: str) -> Loaded:
    try:
        return load(content)
    except UNREADABLE as error:
        raise ConfigurationError(f"expected {what}, got a damaged one: copy the whole kit") from error


def _extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> Any:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return ()
