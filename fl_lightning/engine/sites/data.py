"""Data modules of a federation whose clients' data lie at their sites: the server's, which has counts, and a site's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from traceback import walk_stack
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typing_extensions import override

from fl_lightning.engine.federation.clients import LOADERS, ClientData
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.federation.raw import RawInputs
from fl_lightning.engine.sites.facts import Facts
from fl_lightning.errors import ConfigurationError

UNKNOWN = -1  # number of examples of a class at another site, which no site learns
# What is not asked of the data module of a server that has no data: these would load them.
LOADING = (
    *("prepare_data", "setup", "teardown", "on_exception", "state_dict", "load_state_dict"),
    *(*LOADERS, "domain_batches", "proxy_dataloader", "borrow_loaders", "_borrowed", "_replaced"),
)


class _Placed(FederatedData):
    """Stands for the data of N clients on a machine that has the data of some, or of none.

    What concerns all clients is answered here, as these classes define it down to :class:`FederatedData`: how many
    clients there are, who takes part in a round, where a client's examples lie. All other attributes and methods are
    those of this machine's own data module, whose class this one shows, too; what is set is set there.

    Args:
        own: this machine's data module.
        sizes: (N,) numbers of training examples.
        names: N names of the clients; None for those of ``own``.
        here: names of further attributes and methods that are not those of ``own``.
    """

    own: FederatedData
    in_rows = False  # batches come from ``own``, by its numbers of clients
    by_example = False
    client_label = ClientData.client_label
    size_of = ClientData.size_of
    num_new = 0

    # ``super().__init__()`` would set anew what ``own`` has set.
    def __init__(
        self, own: FederatedData, sizes: Tensor, names: Sequence[str] | None, here: Iterable[str] = ()
    ) -> None:
        vars(self).update(_here=defined_in(type(self)).union(here))
        if getattr(own, "new_clients", 0):
            raise ConfigurationError(
                f"expected all clients to train where they lie at sites of their own, got new_clients="
                f"{own.new_clients}: leave data.new_clients out"  # type: ignore[attr-defined]  # of data that are dealt
            )
        vars(self).update(own=own, sizes=sizes, num_clients=len(sizes), _names=names)

    @override
    def __getattribute__(self, name: str) -> Any:
        if name in ("__dict__", "_is_here") or self._is_here(name):
            return super().__getattribute__(name)
        return self._ask(name)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_here(name):
            super().__setattr__(name, value)
        else:
            setattr(self.own, name, value)

    def _is_here(self, name: str) -> bool:
        """Tell whether an attribute is one of this object, and not one of ``own``."""
        if name.startswith("__"):
            return name != "__class__"  # so that isinstance and ``super()`` see the class of ``own``, too
        return name in vars(self) or name in vars(self)["_here"]

    def _ask(self, name: str) -> Any:
        """Return an attribute of ``own``."""
        return getattr(self.own, name)

    @property
    @override
    def named(self) -> FederatedData:
        return self.own

    @property
    def client_names(self) -> Sequence[str] | None:  # type: ignore[override]  # those of ``own`` are known on loading
        """The names of the clients; None for numbers alone."""
        return self.own.client_names if self._names is None else self._names

    @override
    def client_dataset(self, client: int) -> Dataset[Any]:
        return self._at(client, "training examples").client_dataset(self._row(client))

    @override
    def client_num_samples(self, client: int) -> int:
        return int(self.sizes[client])

    @override
    def client_batches(self, client: int, order: torch.Generator) -> Iterable[Any]:
        return self._at(client, "training examples").client_batches(self._row(client), order)

    @override
    def epoch_rows(self, client: int, order: torch.Generator) -> tuple[TensorDataset, Tensor] | None:
        return self._at(client, "training examples").epoch_rows(self._row(client), order)

    @override
    def held_out_batches(self, client: int) -> Iterable[Any]:
        return self._at(client, "held-out examples").held_out_batches(self._row(client))

    @override
    def raw_inputs(self, client: int) -> RawInputs | None:
        return self._at(client, "inputs").raw_inputs(self._row(client))

    def _row(self, client: int) -> int:
        """Return the number that a client has in this machine's data module."""
        return client

    def _at(self, client: int, what: str) -> FederatedData:
        """Return the data module that has a client's examples.

        Raises:
            ConfigurationError: the examples lie on another machine.
        """
        reader = _reader()
        advice = "read them where the client trains (on_client_start, on_client_end)"
        if reader is not None:
            advice += f", or leave {reader} out"
        raise ConfigurationError(
            f"{reader or 'something'} asks for the {what} of client {self.client_label(client)}, which lie at another "
            f"site: {advice}"
        )


def defined_in(kind: type) -> frozenset[str]:
    """Return the names that a class defines itself, or inherits from a class down to :class:`FederatedData`."""
    names: set[str] = set()
    for cls in takewhile(lambda cls: cls is not ClientData, kind.__mro__):
        names |= vars(cls).keys()
    return frozenset(names)


class RemoteData(_Placed):
    """Holds what a server knows of clients whose data lie at their sites: their numbers, but no example.

    Test sets and the proxy set are the server's own.

    Args:
        own: the server's data module; its training examples are not read.
        facts: counts of each client's data, as its site has told them, by the client's id 0, 1, …, N - 1.
        names: N names of the clients; None for those of ``own``.
        loads: whether the server has data at all; without, it has neither test nor proxy sets.

    Raises:
        ConfigurationError: ``own`` draws the clients of a round itself.
    """

    _loads: bool

    def __init__(
        self, own: FederatedData, facts: Sequence[Facts], names: Sequence[str] | None = None, loads: bool = True
    ) -> None:
        sizes = torch.tensor([fact.size for fact in facts])
        super().__init__(own, sizes, names, here=() if loads else LOADING)
        vars(self).update(_facts=facts, _loads=loads)
        _check_draws(type(own))

    @override
    def _ask(self, name: str) -> Any:
        if self._loads:
            return super()._ask(name)
        try:
            return super()._ask(name)
        except Exception as error:
            kind = type(self.own).__name__
            raise AttributeError(f"{kind}.{name} is not known at a server without data: {error}") from error

    @override
    def class_counts(self) -> Tensor | None:
        counts = [fact.class_counts for fact in self._facts if fact.class_counts is not None]
        return torch.tensor(counts) if len(counts) == len(self._facts) else None

    @override
    def has_examples(self, client: int) -> bool:
        return False

    @override
    def fingerprint(self) -> str:
        told = " ".join(fact.fingerprint for fact in self._facts)
        return hashlib.sha256(told.encode()).hexdigest()[:16]


class SiteData(_Placed):
    """Holds the data of a site's own clients, under the numbers that they have in the federation.

    Args:
        own: the site's data module.
        rows: the number of each of the site's clients in ``own``, by its id in the federation.
        sizes: (N,) numbers of training examples of all clients, which the server has told.
        names: N names of the clients; None for those of ``own``.
    """

    def __init__(
        self, own: FederatedData, rows: Mapping[int, int], sizes: Tensor, names: Sequence[str] | None = None
    ) -> None:
        super().__init__(own, sizes, names)
        vars(self).update(_rows=rows)

    @override
    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of training examples per client and class, -1 for clients of other sites."""
        known = self.own.class_counts()
        if known is None:
            return None
        counts = torch.full((self.num_clients, known.shape[1]), UNKNOWN, dtype=known.dtype)
        for client, row in self._rows.items():
            counts[client] = known[row]
        return counts

    @override
    def has_examples(self, client: int) -> bool:
        return client in self._rows

    @override
    def proxy_dataloader(self) -> DataLoader[Any] | None:
        """Return None: the proxy set is the server's."""
        return None

    @override
    def _row(self, client: int) -> int:
        return self._rows[client]  # type: ignore[no-any-return]  # set past __setattr__

    @override
    def _at(self, client: int, what: str) -> FederatedData:
        return self.own if client in self._rows else super()._at(client, what)


def _check_draws(kind: type[FederatedData]) -> None:
    """Refuse a data module with methods of its own for what is drawn here from the sizes of all sites' data."""
    for name in vars(FederatedData):
        if not name.startswith("__") and getattr(kind, name) is not getattr(FederatedData, name):
            raise ConfigurationError(
                f"{kind.__name__} defines {name}, but the data lie at sites, whose clients the server draws: draw them "
                "by a ClientSampler (data.sampler)"
            )


def _reader() -> str | None:
    """Name the class of the callback that is at work; None if there is none."""
    for frame, _ in walk_stack(None):
        acting = frame.f_locals.get("self")
        if isinstance(acting, Callback):
            return type(acting).__name__
    return None
