"""Trains clients in processes of their own, forked from this one, which sockets connect with the server's."""

import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.sites.data import RemoteData, SiteData
from fl_lightning.engine.sites.facts import Facts, Welcome, sizes_of
from fl_lightning.engine.sites.secure.sums import Veil
from fl_lightning.engine.sites.site import Site, come
from fl_lightning.engine.sites.sites import Sites
from lib.sockets import SocketCarrier, SocketConnection

SITES = ("anna", "berlin", "cork")
NOBODY = Welcome("", [], {})  # says a site that does not come again
Connect = Callable[[socket.socket], Any]
Fit = Callable[..., Any]  # takes the callback that makes it a site, and ``place``, which places its data there


def remote(data: FederatedData, sites: Sites) -> RemoteData:
    """What a server has in the place of data that lie at sites."""
    return RemoteData(data, [sites.facts[client] for client in sorted(sites.facts)])


@contextmanager
def sites(
    fit: Fit,
    clients: int,
    folder: Path,
    connection: Connect = SocketConnection,
    names: Sequence[str] = SITES,
    veil: Callable[[str], Veil] | None = None,
    **settings: Any,
) -> Iterator[Sites]:
    """Fork sites, which share the clients evenly; each calls ``fit``. Yields them when all are there.

    With ``veil``, which makes the masks of a site, the sites hide their answers.
    """
    pairs = {site: socket.socketpair() for site in names}
    clients_of = {site: list(range(number, clients, len(names))) for number, site in enumerate(names)}
    children = [fork(fit, pairs, site, clients_of[site], folder / site, connection, veil) for site in names]
    for _, there in pairs.values():
        there.close()
    carrier = SocketCarrier({site: here for site, (here, _) in pairs.items()})
    known = Sites(carrier, clients_of, secure=veil is not None, **settings)
    try:
        known.gather()
        yield known
    finally:
        carrier.stop()
        for child in children:
            os.waitpid(child, 0)


def fork(
    fit: Fit,
    pairs: dict[str, tuple[socket.socket, socket.socket]],
    site: str,
    clients: list[int],
    folder: Path,
    connection: Connect = SocketConnection,
    veil: Callable[[str], Veil] | None = None,
) -> int:
    """Fork one site, which closes what is not its own; returns the number of its process."""
    child = os.fork()
    if child:
        return child
    there = pairs[site][1]
    for here, other in pairs.values():
        here.close()
        if other is not there:
            other.close()
    _serve(fit, connection(there), site, clients, folder, None if veil is None else veil(site))
    raise AssertionError  # not reached


def _serve(fit: Fit, connection: Any, site: str, clients: list[int], folder: Path, veil: Veil | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    torch.set_num_threads(1)  # the threads of the process that has forked this one are not here

    def place(data: FederatedData) -> FederatedData:
        data.setup("fit")
        welcome = Welcome(site, [Facts.of(data, client, client) for client in clients], {})
        start = come(connection, welcome, data.num_clients)
        if veil is not None:
            veil.start(start.fit, start.sizes)
        return SiteData(data, {client: client for client in clients}, sizes_of(start))

    status = 1
    try:
        fit(Site(connection, NOBODY, folder, veil=veil), place=place)
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)
