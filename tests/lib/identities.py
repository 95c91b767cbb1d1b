"""Certificates of sites, by an authority of the test's own."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fl_lightning.engine.sites.masks import Identity


class Authority:
    """Signs certificates of any name and any time."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _certificate("authority", "authority", self._key, self._key, 0, 365)

    def identity(self, name: str, begins: float = -1, days: float = 30) -> Identity:
        """A site's certificate, valid from some days from now on."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _certificate(name, "authority", key, self._key, begins, days)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Identity(_pem(made), private, _pem(self._certificate))

    def identities(self, names: Sequence[str]) -> dict[str, Identity]:
        """The certificates of some sites."""
        return {name: self.identity(name) for name in names}


def _certificate(
    name: str,
    issuer: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    begins: float,
    days: float,
) -> x509.Certificate:
    start = datetime.now(UTC) + timedelta(days=begins)
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=start,
        not_valid_after=start + timedelta(days=days),
    )
    return builder.sign(signer, SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
