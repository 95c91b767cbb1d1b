"""``fl-lightning keys``: makes, renews and revokes the certificates of a server and its sites. Imports no torch."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from getpass import getpass
from pathlib import Path

from fl_lightning.commands import CommandParser
from fl_lightning.errors import ConfigurationError
from fl_lightning.network.options import check_installed

KEYS = (
    "Make a kit for the server and one for each site of a federation: certificates of one new authority. Give each "
    "site its own kit alone. With the same --out, sites may be added later; who has had a kit keeps it."
)
PASSPHRASE = "FL_LIGHTNING_PASSPHRASE"
LONGEST = 1023  # bytes of a passphrase that OpenSSL takes


def arguments(args: Sequence[str]) -> Namespace:
    """Parse ``keys …``."""
    parser = CommandParser("keys", KEYS)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sites", nargs="+", metavar="NAME", help="names of the sites that get kits")
    renew = "make new certificates and keys for these sites, or for server; older ones serve until they expire"
    what.add_argument("--renew", nargs="+", metavar="NAME", help=renew)
    revoke = "let the server refuse all certificates that these sites have had until now"
    what.add_argument("--revoke", nargs="+", metavar="NAME", help=revoke)
    parser.add_argument("--server", metavar="HOST", help="name or address by which sites reach the server")
    parser.add_argument("--port", type=int, help="the server's port (default 8002, or that of before)")
    parser.add_argument("--days", type=int, default=730, help="life of the certificates (default %(default)s)")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder of the kits")
    passphrase = f"the authority's key has a passphrase, which a new one gets: ask for it, or read {PASSPHRASE}"
    parser.add_argument("--passphrase", action="store_true", help=passphrase)
    options = parser.parse_args(args[1:])
    check_installed()
    return options


def command(args: Sequence[str]) -> int:
    """Run ``keys …`` and return the exit status, 0."""
    options = arguments(args)
    # Not before it is known that cryptography is installed.
    from fl_lightning.network.kits import AUTHORITY, SERVER, expiry, make_kits, renew, revoke

    out = Path(options.out)
    if options.revoke:
        revoked = revoke(options.revoke, out)
        print(f"revoked: {', '.join(options.revoke)}; --renew makes a new kit, which the server takes")
        print(f"copy {revoked} to the server's kit if that is not {out / SERVER}: serve reads it at each connection")
        return 0
    passphrase = None
    if options.passphrase:
        passphrase = _ask(anew=not (out / AUTHORITY).exists())
    if options.renew:
        kits = renew(options.renew, out, options.server, options.port, options.days, passphrase)
    else:
        kits = make_kits(options.sites, options.server, out, options.port, options.days, passphrase)
    print(f"kits: {', '.join(str(kit.folder) for kit in kits) or 'none that are new'}")
    made = [kit.name for kit in kits]
    for name in options.sites or ():
        if name not in made:
            print(f"{name} has had a kit before: --renew makes a new one")
    if kits:
        print(f"their certificates expire on {expiry(kits[0])}: --renew makes new ones")
    if options.renew:
        print("older certificates serve until they expire; --revoke NAME, and then --renew NAME, ends a site's at once")
    print(f"keep {out / AUTHORITY} to yourself: it makes further certificates")
    return 0


def _ask(anew: bool) -> bytes:
    """Read the passphrase of the authority's key from the environment, or ask for it, twice for a new key."""
    given = os.environ.get(PASSPHRASE)
    if not given and not sys.stdin.isatty():
        raise ConfigurationError(f"expected a terminal to ask for the passphrase, or {PASSPHRASE} to be set")
    if not given:
        given = getpass("passphrase of the authority's key: ")
        if anew and getpass("once more: ") != given:
            raise ConfigurationError("expected the same passphrase twice, got two")
    passphrase = given.encode()
    if not 1 <= len(passphrase) <= LONGEST:
        raise ConfigurationError(f"expected a passphrase of 1 to {LONGEST} bytes, got {len(passphrase)}")
    return passphrase
