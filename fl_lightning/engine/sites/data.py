"""Data modules of a federation whose clients' data lie at their sites: the server's, which has counts, and a site's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from traceback import walk_stack
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from fl_lightning.engine.federation.clients import LOADERS, TRANSFER_HOOKS
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.sites.facts import Facts
from fl_lightning.errors import ConfigurationError

UNKNOWN = -1  # number of examples of a class at another site, which no site learns
OWN_HOOKS = ("prepare_data", "teardown", "on_exception", "state_dict", "load_state_dict")
SETTINGS = (
    *("participation", "sampler", "availability", "clients_per_batch", "seed"),
    *("batch_size", "num_workers", "drop_last", "collate_fn", "leave_out"),
)


class _Placed(FederatedData):
    """Stands for the data of N clients on a machine that has the data of some, or of none.

    Args:
        own: this machine's data module, whose settings, loaders and transfer hooks hold.
        sizes: (N,) numbers of training examples.
        names: N names of the clients; None for those of ``own``.
    """

    in_rows = False  # batches come from ``own``

    def __init__(self, own: FederatedData, sizes: Tensor, names: Sequence[str] | None) -> None:
        super().__init__()
        self.own = own
        self.sizes = sizes
        self.num_clients = len(sizes)
        self.client_names = own.client_names if names is None else names
        self._take_settings()

    @property
    @override
    def named(self) -> FederatedData:
        return self.own

    def _take_settings(self) -> None:
        for name in SETTINGS:
            setattr(self, name, getattr(self.own, name))
        for name in (*LOADERS, *TRANSFER_HOOKS, *OWN_HOOKS):
            if is_overridden(name, self.own):
                setattr(self, name, getattr(self.own, name))

    @override
    def setup(self, stage: str) -> None:
        self.own.trainer = self.trainer
        self.own.setup(stage)
        self._take_settings()  # some are known on loading only

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
    def held_out_batches(self, client: int) -> Iterable[Any]:
        return self._at(client, "held-out examples").held_out_batches(self._row(client))

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


class RemoteData(_Placed):
    """Holds what a server knows of clients whose data lie at their sites: their numbers, but no example.

    Test sets and the proxy set are the server's own.

    Args:
        own: the server's data module; its training examples are not read.
        facts: counts of each client's data, as its site has told them, by the client's id 0, 1, …, N - 1.
        names: N names of the clients; None for those of ``own``.
        loads: whether the server has data at all; without, it has neither test nor proxy sets.
    """

    def __init__(
        self, own: FederatedData, facts: Sequence[Facts], names: Sequence[str] | None = None, loads: bool = True
    ) -> None:
        super().__init__(own, torch.tensor([fact.size for fact in facts]), names)
        self._facts = facts
        self._loads = loads
        if not loads:
            for name in (*LOADERS, *OWN_HOOKS):
                self.__dict__.pop(name, None)

    @override
    def setup(self, stage: str) -> None:
        if self._loads:
            super().setup(stage)

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

    @override
    def domain_batches(self) -> Mapping[str, Iterable[Any]]:
        return self.own.domain_batches() if self._loads else {}

    @override
    def proxy_dataloader(self) -> DataLoader[Any] | None:
        return self.own.proxy_dataloader() if self._loads else None


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
        self._rows = rows

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
    def _row(self, client: int) -> int:
        return self._rows[client]

    @override
    def _at(self, client: int, what: str) -> FederatedData:
        return self.own if client in self._rows else super()._at(client, what)


def _reader() -> str | None:
    """Name the class of the callback that is at work; None if there is none."""
    for frame, _ in walk_stack(None):
        acting = frame.f_locals.get("self")
        if isinstance(acting, Callback):
            return type(acting).__name__
    return None
