"""Certificates made by hand, as a peer would that follows no rule."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVES = ExtendedKeyUsageOID.SERVER_AUTH
JOINS = ExtendedKeyUsageOID.CLIENT_AUTH
LOCALHOST = x509.DNSName("localhost")


@dataclass(frozen=True)
class Signed:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def signed(
    name: str,
    by: Signed | None = None,
    usage: x509.ObjectIdentifier | None = None,
    known_as: x509.GeneralName | None = None,
    days: tuple[float, float] = (-1, 30),
) -> Signed:
    """A certificate that is valid from the first to the second of some days from now; an authority signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    )
    if usage:
        built = built.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if known_as:
        built = built.add_extension(x509.SubjectAlternativeName([known_as]), critical=False)
    return Signed(built.sign(by.key if by else key, hashes.SHA256()), key)
