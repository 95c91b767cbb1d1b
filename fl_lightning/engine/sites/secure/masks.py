"""Masks: numbers that each pair of sites shares, which hide what single sites send and leave the sum as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from time import monotonic

import torch
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from torch import Tensor

from fl_lightning.engine.round import Outgoing
from fl_lightning.engine.sites.facts import LEAST
from fl_lightning.errors import ConfigurationError, TrainingError

PROTOCOL = "fl-lightning secure aggregation 1"
BLOCK = 1 << 15  # words that are made at a time, which stay in a processor's cache
WORD = 8  # bytes
LAST_ROUND = 2**53
HEX = 16  # digits of a fingerprint that people compare


@dataclass(frozen=True)
class Identity:
    """Holds the files of a site's kit, PEM.

    Attributes:
        certificate: the site's certificate.
        key: the certificate's private key, of the curve P-256.
        authority: the certificate of the authority that has signed the sites' certificates.
    """

    certificate: bytes
    key: bytes
    authority: bytes


@dataclass(frozen=True)
class Bundle:
    """Holds what a site shows to the others.

    Attributes:
        key: the site's public key for one fit, 32 bytes of X25519.
        signature: signature of that key, the fit and the site's name, by the certificate's key.
        certificate: the site's certificate, PEM.
    """

    key: bytes
    signature: bytes
    certificate: bytes

    def plain(self) -> dict[str, str]:
        """Return the bundle as JSON has it."""
        return {"key": self.key.hex(), "signature": self.signature.hex(), "certificate": self.certificate.decode()}

    @classmethod
    def of(cls, plain: object) -> Bundle:
        """Read a bundle from JSON.

        Raises:
            TrainingError: the value is no bundle.
        """
        if not isinstance(plain, Mapping) or not all(isinstance(value, str) for value in plain.values()):
            raise TrainingError(f"expected the public key of a site, got {type(plain).__name__}")
        try:
            return cls(
                bytes.fromhex(plain["key"]), bytes.fromhex(plain["signature"]), plain["certificate"].encode("ascii")
            )
        except (KeyError, ValueError) as error:
            raise TrainingError(f"expected the public key of a site, got one without {error}") from error


class Masks:
    """Holds the keys of a site for one fit, and hides what the site sends.

    For each pair of sites, X25519 gives a secret that no one else has. HKDF-SHA256 makes of it a key for the fit, both
    names and public keys, and of this one a key for each round and what the server has sent; ChaCha20 makes a stream.
    The site that comes first in the order of names adds the stream to its numbers, the other one takes the stream away,
    modulo 2^64: so all streams are gone from the sum over a set of sites, and any part of the sum is noise to whoever
    lacks a key.

    Args:
        name: the site's name.
        fit: the name of the fit, from the server.
        identity: the site's kit.

    Attributes:
        bundle: the site's signed public key, which it shows to the others.

    Raises:
        ConfigurationError: the kit's key is of another kind.
    """

    def __init__(self, name: str, fit: str, identity: Identity) -> None:
        self._name = name
        self._fit = fit
        self._authority = x509.load_pem_x509_certificate(identity.authority)
        self._secret = X25519PrivateKey.generate()
        key = self._secret.public_key().public_bytes_raw()
        signer = load_pem_private_key(identity.key, password=None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise ConfigurationError(
                "secure aggregation needs a kit with a key of the curve P-256, got another kind of key: make the kit "
                "anew by fl-lightning keys"
            )
        signature = signer.sign(_context(fit, name, key.hex()), ec.ECDSA(SHA256()))
        self.bundle = Bundle(key, signature, identity.certificate)
        self._pairs: dict[tuple[str, bytes], bytes] = {}  # the key of each pair, by the other's name and public key
        self._last = 0  # the round of the last masks

    def agree(self, bundles: Mapping[str, Bundle]) -> list[str]:
        """Check the bundles of a set of sites, by name, and make the keys that this site shares with each.

        Returns:
            The names of the sites whose keys are new.

        Raises:
            TrainingError: a certificate is of another authority, another name, expired or not yet valid, or a key is
                not signed by the certificate's owner for this fit; the message names the site.
        """
        if bundles.get(self._name) != self.bundle:
            raise TrainingError(f"expected the server to pass on the public key of {self._name} as it is, got another")
        new: list[str] = []
        for name, bundle in bundles.items():
            if name == self._name or (name, bundle.key) in self._pairs:
                continue
            self._pairs[name, bundle.key] = self._share(name, bundle)
            new.append(name)
        return new

    def _share(self, name: str, bundle: Bundle) -> bytes:
        """Make the key that this site shares with another one, whose bundle is checked first."""
        check_bundle(name, self._fit, bundle, self._authority)
        own = self.bundle.key.hex()
        parties = sorted([(self._name, own), (name, bundle.key.hex())])
        try:
            secret = self._secret.exchange(X25519PublicKey.from_public_bytes(bundle.key))
        except ValueError as error:
            raise TrainingError(f"expected a public key of X25519 from {name}, got {error}") from error
        return HKDF(SHA256(), 32, None, _context(self._fit, *parties[0], *parties[1])).derive(secret)

    def hide(self, words: Tensor, number: int, bundles: Mapping[str, Bundle], sent: str = "") -> None:
        """Add this site's masks to what it sends in a round, int64 (n,), in place.

        Args:
            words: the numbers.
            number: the round's number.
            bundles: the bundles of the round's set of sites, which :meth:`agree` has taken.
            sent: digest of what the server has sent; where it differs from site to site, the masks stay in the sum.

        Raises:
            TrainingError: the keys have made masks for this round, or a later one: the same masks, on two messages,
                would hide neither.
        """
        for sign, key in self._streams(number, bundles, sent):
            _add_stream(words, key, number, sign)

    def hide_whole(self, value: int, size: int, number: int, bundles: Mapping[str, Bundle], sent: str = "") -> int:
        """Return a whole number, modulo 256^size, with this site's masks added; see :meth:`hide`."""
        for sign, key in self._streams(number, bundles, sent):
            value += sign * int.from_bytes(_stream(key, number).update(bytes(size)), "little")
        return value % (1 << 8 * size)

    def _streams(self, number: int, bundles: Mapping[str, Bundle], sent: str) -> Iterator[tuple[int, bytes]]:
        """Yield the sign and the key of each stream of a round, which can be had once."""
        if number <= self._last:
            raise TrainingError(f"round {number}: the masks of round {self._last} are used, and none before are left")
        self._last = number
        for name, bundle in sorted(bundles.items()):
            if name != self._name:
                sign = 1 if self._name < name else -1
                yield sign, HKDF(SHA256(), 32, None, _context(str(number), sent)).derive(self._pairs[name, bundle.key])


def _context(*parts: str) -> bytes:
    """Return what a signature or a key is for; no other parts give the same bytes."""
    return json.dumps([PROTOCOL, *parts]).encode()


def _stream(key: bytes, number: int) -> CipherContext:
    """Begin the stream of a key for a round, which is added to what it is given, bit by bit."""
    nonce = bytes(8) + number.to_bytes(8, "little")  # a count of blocks from 0 on, and the round
    return Cipher(ChaCha20(key, nonce), None).encryptor()


def _add_stream(words: Tensor, key: bytes, number: int, sign: int) -> None:
    """Add a key's stream for a round to words (n,), or take it away, modulo 2^64."""
    stream = _stream(key, number)
    size = min(BLOCK, len(words)) * WORD
    zeros, buffer = bytes(size), bytearray(size)
    for part in torch.split(words, BLOCK):
        length = len(part) * WORD
        stream.update_into(memoryview(zeros)[:length], memoryview(buffer)[:length])
        part.add_(torch.frombuffer(buffer, dtype=torch.int64, count=len(part)), alpha=sign)


def check_bundle(name: str, fit: str, bundle: Bundle, authority: x509.Certificate) -> None:
    """Refuse a bundle that is not a site's own for a fit.

    Raises:
        TrainingError: the bundle is not; the message names the site and the reason.
    """
    begin = f"the public key of {name} is refused: "
    try:
        certificate = x509.load_pem_x509_certificate(bundle.certificate)
    except ValueError as error:
        raise TrainingError(f"{begin}expected a certificate, got {error}") from error
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise TrainingError(f"{begin}its certificate is not signed by this kit's authority") from error
    subjects = [str(found.value) for found in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if subjects != [name]:
        raise TrainingError(f"{begin}its certificate is that of {', '.join(subjects) or 'nobody'}")
    now = datetime.now(UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now <= ends:
        raise TrainingError(
            f"{begin}its certificate is valid from {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC, and now it is "
            f"{now:%Y-%m-%d %H:%M} here"
        )
    owner = certificate.public_key()
    if not isinstance(owner, ec.EllipticCurvePublicKey):
        raise TrainingError(f"{begin}its certificate has a key of another kind than P-256")
    try:
        owner.verify(bundle.signature, _context(fit, name, bundle.key.hex()), ec.ECDSA(SHA256()))
    except InvalidSignature as error:
        raise TrainingError(f"{begin}{name} has not signed it for this fit") from error


def fingerprint_of(bundle: Bundle) -> str:
    """Return the beginning of the SHA-256 of a bundle's certificate, which people may compare."""
    return x509.load_pem_x509_certificate(bundle.certificate).fingerprint(SHA256()).hex()[:HEX]


class Answers:
    """Remembers for which rounds a site has been asked, and refuses what would give a single update away.

    The difference of two sums over sets that differ in one site is that site's update. So a site answers for a round
    once, with one set, which it knows before it trains. A server that has started again, and names a new fit, may ask
    for a round again, since it may have lost the sum, but with the same set alone.

    Args:
        name: the site's name.
        sites: the names of all sites, from this site's own config.
    """

    def __init__(self, name: str, sites: Sequence[str]) -> None:
        self._name = name
        self._sites = set(sites)
        self._sets: dict[int, list[str]] = {}
        self._fit = ""
        self._last = 0

    def begin(self, fit: str, number: int, names: Sequence[str]) -> None:
        """Note that the site answers for a round, once, before it trains.

        Raises:
            TrainingError: the site does not answer; the message says why.
        """
        named = sorted(names)
        if len(set(named)) < LEAST:
            raise TrainingError(f"round {number}: expected a set of at least {LEAST} sites to sum, got {named}")
        if len(set(named)) < len(named) or not set(named) <= self._sites or self._name not in named:
            raise TrainingError(
                f"round {number}: expected a set of different sites of network.sites with {self._name} among them, got "
                f"{named}"
            )
        last = self._last if fit == self._fit else 0
        if number <= last:
            raise TrainingError(
                f"round {number}: {self._name} has answered for round {last}, and answers for a round once"
            )
        if number > LAST_ROUND:
            raise TrainingError(f"expected the number of a round, got {number:.3g}")
        before = self._sets.get(number, named)
        if before != named:
            raise TrainingError(
                f"round {number}: {self._name} has answered in a set of {', '.join(before)}, and not again in one of "
                f"{', '.join(named)}: the difference of the two sums would show single updates"
            )
        self._sets[number] = named
        self._fit, self._last = fit, number


class SiteMasks:
    """Hides what a site sends in each round of a run; see :class:`Veil`.

    Args:
        name: the site's name.
        sites: the names of all sites, from this site's own config.
        identity: the site's kit.
        deadline: seconds after which a round is skipped without this site's answer, which is then not sent; None for no
            limit.
        say: is called with a line for the keys that are new.
    """

    def __init__(
        self,
        name: str,
        sites: Sequence[str],
        identity: Identity,
        deadline: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._name = name
        self._identity = identity
        self._deadline = deadline
        self._say = say
        self._answers = Answers(name, sites)
        self._fit = ""
        self._masks: Masks | None = None
        self._sizes: list[int] = []
        self._bundles: dict[str, Bundle] = {}  # of the round's set
        self._began = 0.0

    def start(self, fit: str, sizes: Sequence[int]) -> None:
        """Draw keys for a fit, unless that fit is going on.

        Args:
            fit: the name of the fit.
            sizes: numbers of training examples of all clients, as the server tells them.

        Raises:
            TrainingError: the server names no fit.
        """
        if not fit:
            raise TrainingError("the server does not sum up what sites send: set network.secure_aggregation there, too")
        self._sizes = list(sizes)
        if fit != self._fit or self._masks is None:
            self._fit = fit
            self._masks = Masks(self._name, fit, self._identity)

    @property
    def _own(self) -> Masks:
        assert self._masks is not None
        return self._masks

    @property
    def shown(self) -> Mapping[str, str]:
        """The site's signed public key, as it shows it to the others."""
        return self._own.bundle.plain()

    def begin(self, asked: Outgoing) -> str:
        """Take note of the set of sites that a round names; return why the site does not answer, or nothing.

        Raises:
            TrainingError: a site's public key is not its own.
        """
        self._began = monotonic()
        self._bundles = {name: Bundle.of(plain) for name, plain in asked.together.items()}
        try:
            self._answers.begin(self._fit, asked.number, [*self._bundles])
        except TrainingError as error:
            return str(error)
        new = [f"{name} ({fingerprint_of(self._bundles[name])})" for name in self._own.agree(self._bundles)]
        if new:
            own = f"{self._name} ({fingerprint_of(self._own.bundle)})"
            self._say(f"sums as {own} with {', '.join(new)}: the beginnings of the certificates' fingerprints")
        return ""

    def hide(self, words: Tensor, asked: Outgoing) -> None:
        """Add the masks of a round to words, in place.

        Raises:
            TrainingError: the answer comes too late for its round.
        """
        if self._deadline is not None and monotonic() - self._began > self._deadline:
            raise TrainingError(f"round {asked.number}: the answer comes after {self._deadline:g} s, and is not sent")
        self._own.hide(words, asked.number, self._bundles, digest_of(asked, self._sizes))


def digest_of(asked: Outgoing, sizes: Sequence[int]) -> str:
    """Hash what a server sends to all clients of a round alike: a server that does not learns nothing from their sum.

    It could send most clients a model from which they do not move, or sizes that round their updates to zero, and read
    the update of another one from the sum.

    Args:
        asked: the model and the states that were sent to one of the clients.
        sizes: numbers of training examples of all clients, as the server tells them.
    """
    tensors = {"params": asked.params}
    tensors |= {f"buffers/{place}": value for place, value in enumerate(asked.buffers) if value is not None}
    for rule, state in asked.states.items():
        for name, value in state.items():
            if not name.endswith(f"/{asked.client}"):  # which is the client's own
                tensors[f"states/{rule}/{name}"] = value
    content = sha256(json.dumps([asked.number, asked.factors, list(sizes), sorted(asked.together)]).encode())
    for name, value in sorted(tensors.items()):
        dense = value.detach().to_dense().cpu().contiguous()
        content.update(json.dumps([name, str(dense.dtype), list(dense.shape)]).encode())
        content.update(dense.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()
