"""HetLoRA: adapters of different ranks."""

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Buffers, Cohort, ConfigurationError, FederatedCallback, LocalRun, Server
from fl_lightning.callbacks.adapters.low_rank import adapters_of, check_adapters


class HetLoRA(FederatedCallback):
    """Gives clients adapters of different ranks: the first rows of A and columns of B (Cho et al., 2024).

    The server fills up with zeros what a client does not have, and weights client k by the Frobenius norm of its
    B_k A_k over all adapters. The paper's clients also prune their ranks while they train; here the ranks stay.

    Args:
        ranks: the clients' ranks: client k has ``ranks[k mod len(ranks)]``, at most that of the module's adapters.

    Raises:
        ConfigurationError: there are no ranks, a rank is below 1 or above that of an adapter, the client module has no
            adapters on linear layers, or a part of one stays with the clients.
    """

    settles = frozenset({"updates", "weights"})

    def __init__(self, ranks: Sequence[int]) -> None:
        if not ranks or min(ranks) < 1:
            raise ConfigurationError(f"ranks must be a list of whole numbers of at least 1, got {ranks}")
        self.ranks = ranks

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Server)
        check_adapters(self, pl_module)
        most = min(len(adapter.factors[0]) for adapter in adapters_of(pl_module))
        if max(self.ranks) > most:
            raise ConfigurationError(f"ranks must be at most the adapters' rank {most}, got {max(self.ranks)}")
        self._beyond = {rank: _beyond(pl_module, rank) for rank in set(self.ranks)}

    @override
    def start(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return params.masked_fill(self._missing(client), 0), buffers

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        run.grads.masked_fill_(self._missing(run.client), 0)

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        missing = self._missing(run.client)
        run.upload_bytes = int((~missing).sum()) * run.params.element_size()

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        deltas = cohort.deltas.clone()
        for delta, client in zip(deltas, cohort.clients, strict=True):
            missing = self._missing(client)
            delta[missing] = -cohort.anchor[missing]
        padded = cohort.replace(deltas=deltas)
        squares = torch.zeros(len(deltas), dtype=torch.float64)
        for adapter in adapters_of(orchestrator):
            first, second = adapter.of_clients(orchestrator, padded, padded.columns)
            squares += (adapter.scaling * second @ first).square().sum((1, 2))
        total = squares.sqrt().sum()
        return padded.replace(weights=squares.sqrt() / total) if total > 0 else padded

    def _missing(self, client: int) -> Tensor:
        """Return the (P,) mask of what a client does not have."""
        return self._beyond[self.ranks[client % len(self.ranks)]]


def _beyond(orchestrator: Server, rank: int) -> Tensor:
    """Return the (P,) mask of the rows of A and columns of B after the first ``rank``."""
    mask = torch.zeros_like(orchestrator.params, dtype=torch.bool)
    for adapter in adapters_of(orchestrator):
        for columns, parameter, dim in zip(adapter.columns(orchestrator), adapter.parameters, (0, 1), strict=True):
            if columns is not None:
                mask[columns.narrow(dim, rank, parameter.shape[dim] - rank).flatten()] = True
    return mask
