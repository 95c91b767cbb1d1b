"""Policy: what a fit does with the updates that arrive."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, nan
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from fl_lightning.engine.rules.callback import WEIGHT_HOOKS, FederatedCallback, Monitor, streams
from fl_lightning.engine.rules.hooks import checked_hook
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.updates.cohort import ClientResult, Cohort
from fl_lightning.engine.updates.store import Store
from fl_lightning.engine.updates.updates import Summed

STREAM_ABOVE = 256 << 20  # bytes of updates in memory above which a device sums them as they arrive, if the rules allow


class Policy:
    """Says where the updates of a fit's rounds lie, and which of them are left out.

    Args:
        orchestrator: the orchestrator.
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
        told: the clients that this device has said to be left out, each with the reason, without its numbers.
    """

    def __init__(
        self,
        orchestrator: Server,
        callbacks: Sequence[FederatedCallback],
        group_size: int,
        limit: int,
        folder: Path,
        on_bad_update: Literal["skip", "raise"],
        max_update_norm: float | None,
    ) -> None:
        trainer = orchestrator.trainer
        data = orchestrator.data
        devices = trainer.world_size
        update_bytes = orchestrator.params.nbytes
        room = min(limit, STREAM_ABOVE)
        groups = ceil(data.largest_cohort / group_size)
        slots = ceil(groups / devices) * group_size  # for the clients of this device
        if devices == 1:
            slots = min(slots, data.largest_cohort)
        sums = (
            group_size == 1
            and max_update_norm is None
            and all(streams(callback) for callback in callbacks)
            and slots * update_bytes > room
        )
        self.sums_after: int | None = None
        if sums:
            slots = min(slots, max(data.clients_per_batch, room // update_bytes))
            self.sums_after = max(1, slots // data.clients_per_batch)
        self.store = Store(orchestrator.params, trainer.global_rank, devices, slots, limit, folder)
        self._orchestrator = orchestrator
        self._rules = [callback for callback in callbacks if not isinstance(callback, Monitor)]
        self.knows_shares = all(streams(rule, WEIGHT_HOOKS) for rule in self._rules)
        self.on_bad_update = on_bad_update
        self.max_update_norm = max_update_norm
        self.label = data.client_label
        self.speaks = trainer.is_global_zero
        self.told = set[tuple[int, str]]()

    @property
    def loss_scale(self) -> tuple[float, int] | None:
        """Scale and growth tracker of the run's GradScaler, which every client starts with; None without one."""
        scaler: Any = getattr(self._orchestrator.trainer.precision_plugin, "scaler", None)
        state = {} if scaler is None else scaler.state_dict()
        return (state["scale"], state["_growth_tracker"]) if state else None

    def shares(self, cohort: Cohort) -> Tensor:
        """Compute the weights (k,) of some updates in the sum, up to a factor that the clients of the round share."""
        weights = cohort.num_samples.double()
        for rule in self._rules:
            weights = checked_hook(rule, "stream_weights")(self._orchestrator, cohort, weights)
        return weights

    def shares_of_sizes(self, sizes: Sequence[int]) -> Tensor:
        """Compute the weights (N,) of all clients in the sum, which are to follow from their numbers of examples alone.

        Raises:
            ConfigurationError: a rule reads single updates for the weights.
        """
        orchestrator = self._orchestrator
        results = [ClientResult(client, size, 0, nan, 0.0) for client, size in enumerate(sizes)]
        nothing_known = Summed(self.store.columns)
        return self.shares(Cohort.collect(orchestrator.round, orchestrator.params, nothing_known, results))
