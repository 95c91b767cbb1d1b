"""Policy: what a fit does with the updates that arrive."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Literal

from torch import Tensor

from fl_lightning.engine.rules.callback import WEIGHT_HOOKS, FederatedCallback, Monitor, streams
from fl_lightning.engine.rules.hooks import checked
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.updates.cohort import Cohort
from fl_lightning.engine.updates.store import Store

STREAM_ABOVE = 256 << 20  # bytes of updates in memory above which a device sums them as they arrive, if the rules allow


class Policy:
    """Says where the updates of a fit's rounds lie, and which of them are left out.

    Args:
        server: the orchestrator.
        callbacks: the run's federated callbacks.
        group_size: number of clients that train together.
        limit: bytes above which the updates of a round are in a file.
        folder: the folder of the file.
        on_bad_update: treatment of a client that fails or whose update is not finite: "skip" or "raise".
        max_update_norm: largest norm of an update, as a multiple of the median norm; None for no limit.

    Attributes:
        store: the memory of the updates of this device's clients.
        sums_after: number of batches of clients after which the updates that have arrived are summed, and then dropped;
            None where all updates of a round are kept.
        knows_shares: whether no rule reads single updates for the weights, so that :meth:`shares` tells the weights.
        label: returns the name of a client in messages.
        speaks: whether this device tells what all devices know.
    """

    def __init__(
        self,
        server: Server,
        callbacks: Sequence[FederatedCallback],
        group_size: int,
        limit: int,
        folder: Path,
        on_bad_update: Literal["skip", "raise"],
        max_update_norm: float | None,
    ) -> None:
        trainer, data, size = server.trainer, server.data, server.params.nbytes
        devices, room = trainer.world_size, min(limit, STREAM_ABOVE)
        self._server = server
        self._rules = [callback for callback in callbacks if not isinstance(callback, Monitor)]
        groups_here = ceil(ceil(data.largest_cohort / group_size) / devices)
        slots = min(groups_here * group_size, data.largest_cohort) if devices == 1 else groups_here * group_size
        summed = group_size == 1 and max_update_norm is None and all(map(streams, callbacks)) and slots * size > room
        if summed:
            slots = min(slots, max(data.clients_per_batch, room // size))
        self.store = Store(server.params, trainer.global_rank, devices, slots, limit, folder)
        self.sums_after = max(1, slots // data.clients_per_batch) if summed else None
        self.knows_shares = all(streams(rule, WEIGHT_HOOKS) for rule in self._rules)
        self.on_bad_update, self.max_update_norm = on_bad_update, max_update_norm
        self.label, self.speaks = data.client_label, trainer.is_global_zero

    def shares(self, cohort: Cohort) -> Tensor:
        """Compute the weights (k,) of some updates in the sum, up to a factor that the clients of the round share."""
        weights = cohort.num_samples.double()
        for rule in self._rules:
            weights = checked(rule, "stream_weights")(self._server, cohort, weights)
        return weights
