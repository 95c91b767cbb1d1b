"""Trains clients in processes of their own, forked from this one, which sockets connect with the server's."""

import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fl_lightning.engine.sites.site import Site
from fl_lightning.engine.sites.sockets import SocketCarrier, SocketConnection

SITES = 3
Connect = Callable[[socket.socket], Any]


@contextmanager
def sites(
    fit: Callable[..., Any], clients: int, folder: Path, connection: Connect = SocketConnection
) -> Iterator[SocketCarrier]:
    """Fork sites, which share the clients evenly; each calls ``fit`` with the callback that makes it a site."""
    pairs = [socket.socketpair() for _ in range(SITES)]
    children = []
    for number, (_, there) in enumerate(pairs):
        child = os.fork()
        if child == 0:
            for end, other in pairs:
                end.close()
                if other is not there:
                    other.close()
            _serve(fit, connection(there), folder / f"site-{number}")
        children.append(child)
    for _, there in pairs:
        there.close()
    carrier = SocketCarrier({client: pairs[client % SITES][0] for client in range(clients)})
    try:
        yield carrier
    finally:
        carrier.stop()
        for child in children:
            os.waitpid(child, 0)


def _serve(fit: Callable[..., Any], connection: Any, folder: Path) -> None:
    torch.set_num_threads(1)  # the threads of the process that has forked this one are not here
    status = 1
    try:
        fit(Site(connection, folder))
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)
