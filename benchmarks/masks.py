"""Seconds that secure aggregation costs a site and the server in a round: ``python -m benchmarks.masks``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fl_lightning.engine.sites.secure.fixed import FixedPoint
from fl_lightning.engine.sites.secure.masks import Identity, Masks

SIZES = (170_000, 11_000_000)
SITES = (3, 10)


def identities(count: int) -> dict[str, Identity]:
    """Make certificates of one authority for a number of sites."""
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ["authority", *map(str, range(count))]}
    names = {name: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in keys}
    now = datetime.now(UTC)
    made: dict[str, bytes] = {}
    for name, key in keys.items():
        builder = x509.CertificateBuilder(
            names["authority"],
            names[name],
            key.public_key(),
            x509.random_serial_number(),
            now - timedelta(days=1),
            now + timedelta(days=1),
        )
        made[name] = builder.sign(keys["authority"], SHA256()).public_bytes(Encoding.PEM)
    authority = made.pop("authority")
    found: dict[str, Identity] = {}
    for name, certificate in made.items():
        private = keys[name].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        found[name] = Identity(certificate, private, authority)
    return found


def measure(count: int) -> Iterator[tuple[int, list[float]]]:
    """Yield each number of numbers, and the seconds of agreeing, encoding, hiding, and of the server's sum."""
    masks = {name: Masks(name, "fit", identity) for name, identity in identities(count).items()}
    bundles = {name: own.bundle for name, own in masks.items()}
    one = masks["0"]
    for number, size in enumerate(SIZES, 1):
        form = FixedPoint.of(count, 1000)
        update = torch.randn(size)
        times = [time.perf_counter()]
        one.agree(bundles)
        times.append(time.perf_counter())
        words = form.encode(update, 1000)
        times.append(time.perf_counter())
        one.hide(words, number, bundles)
        times.append(time.perf_counter())
        total = torch.zeros_like(words)
        for _ in range(count):
            total.add_(words)
        form.decode(total)
        times.append(time.perf_counter())
        yield size, [end - begin for begin, end in pairwise(times)]


def main() -> None:
    """Print a row for each number of sites and of numbers."""
    print("sites     numbers   agree  encode    hide  sum (seconds; keys are agreed upon once a fit)")
    for count in SITES:
        for size, seconds in measure(count):
            print(f"{count:5} {size:11,}", *(f"{value:7.3f}" for value in seconds))


if __name__ == "__main__":
    main()
