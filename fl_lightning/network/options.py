"""What ``serve`` and ``join`` take, and their help."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent, fill

from fl_lightning.commands import CommandParser
from fl_lightning.errors import ConfigurationError, check_at_least, check_positive
from fl_lightning.fit.configs import check_options

SERVE = """\
usage: fl-lightning serve --config FILE --network.kit FOLDER [--statistics FILE] [--OPTION VALUE …]

Run the rounds of a federation whose clients train at their sites, by fl-lightning join. Trainer, rules,
loggers and checkpoints are here; the options are those of fl-lightning fit. --ckpt_path last goes on
with the last run. --statistics FILE trains nothing: it asks the sites for their classes, means and
deviations, and writes a config of them, which all pass as a second --config."""
JOIN = """\
usage: fl-lightning join --config FILE --network.kit FOLDER [--statistics] [--dry_run] [--once]
       [--OPTION VALUE …]

Train the client of this site for a server, from this site's own config, data and package. The options
are those of fl-lightning fit; those that affect results must be the server's. --dry_run says what would
be sent, and connects nowhere. A site waits for a server that is not there, or is gone; with --once it
ends when the server does. --statistics tells classes, sums and squared deviations of this site's data
to a server that asks for them, and trains nothing."""
WIDTH = 100  # of the help


@dataclass
class Network:
    """Names the sites of a federation over a network, and says how long its rounds wait.

    Attributes:
        kit: the kit of the server or of this site, a folder that ``fl-lightning keys`` has made.
        sites: the names of the sites, as in their certificates, in the order of their clients' numbers 0, 1, …; the
            same everywhere.
        deadline: seconds after which a round goes on without the clients that have not answered; they are left out.
        min_clients: number of clients that must be there for a round to begin, and have answered for it to count.
        dealt: whether each site has the data of all clients, and takes its own part, as in a rehearsal; otherwise all
            data of a site are its client's own.
        max_examples: largest number of training examples that a site may tell of, which is its weight; null for no
            limit.
        server_data: whether the server has data of its own: test and proxy sets. Its training examples are not used.
        secure_aggregation: whether sites hide what they send from the server, which gets the sum over three sites at
            least; the same everywhere. What reads single updates is refused, and a round in which a site fails is
            skipped.
        smallest: smallest number of examples of a class that a site tells in statistics (``--statistics``).
    """

    kit: str
    sites: list[str]
    deadline: float = 3600.0
    min_clients: int = 1
    dealt: bool = False
    max_examples: int | None = None
    server_data: bool = True
    secure_aggregation: bool = False
    smallest: int = 5

    def __post_init__(self) -> None:
        check_at_least(1, **{"network.min_clients": self.min_clients})
        check_at_least(0, **{"network.smallest": self.smallest})
        check_positive(**{"network.deadline": self.deadline})
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise ConfigurationError(
                f"expected network.sites to be the different names of the sites, as in [anna, berlin], got {self.sites}"
            )
        if self.min_clients > len(self.sites):
            raise ConfigurationError(
                f"expected network.min_clients to be {len(self.sites)} at most, one client for each of network.sites, "
                f"got {self.min_clients}"
            )

    def client_of(self, site: str) -> int:
        """Return the number of a site's client.

        Raises:
            ConfigurationError: there is no such site.
        """
        if site not in self.sites:
            raise ConfigurationError(
                f"expected the kit of one of the sites {', '.join(self.sites)} (network.sites), got that of {site}"
            )
        return self.sites.index(site)


def check(args: Sequence[str]) -> None:
    """Show the help of ``serve`` or ``join``, or refuse what is no option of a command of one run."""
    if {"-h", "--help"} & {*args}:
        print(SERVE if args[0] == "serve" else JOIN)
        print("\nThe network, in a config below network:")
        attributes = dedent(str(Network.__doc__).partition("Attributes:\n")[2])
        for about in re.split(r"\n(?=\S)", attributes.strip()):
            name, _, words = " ".join(about.replace("``", "").split()).partition(": ")
            default = f" (default {json.dumps(getattr(Network, name))})" if hasattr(Network, name) else ""
            words = f"{words.removesuffix('.')}{default}"
            print(fill(f"{f'  --network.{name}':32}{words}", WIDTH, subsequent_indent=" " * 32))
        raise SystemExit(0)
    check_options([args[0], *own_options(args)[1]])
    check_installed()


def own_options(args: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Parse what ``serve`` and ``join`` take besides the options of a fit; return the others as they are."""
    parser = CommandParser(args[0], "")
    if args[0] == "serve":
        parser.add_argument("--statistics", type=Path, metavar="FILE")
    else:
        parser.add_argument("--statistics", action="store_true")
        parser.add_argument("--dry_run", "--dry-run", dest="dry", action="store_true")
        parser.add_argument("--once", action="store_true")
    return parser.parse_known_args(args[1:])


def check_installed() -> None:
    """Refuse to go on without the packages that carry messages and make certificates.

    Raises:
        ConfigurationError: one of them is not installed.
    """
    for package in ("grpc", "cryptography"):
        if find_spec(package) is None:
            raise ConfigurationError(f"expected {package} to be installed: pip install fl-lightning[network]")
