"""The client_parallel strategy, whose devices train different clients of the cohort."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from torch import Tensor
from typing_extensions import override

from fl_lightning.engine.cohort import ClientResult
from fl_lightning.engine.lightning_private import keep_samplers


class ClientParallelStrategy(DDPStrategy):
    """Starts processes as DDP does, but wraps no module: gradients stay on their client, the devices share updates.

    Every device computes the same round from all updates, so the result does not depend on the number of devices.
    (Plain DDP would split each client's batches, which means fewer local steps and so another algorithm.) Every device
    evaluates the whole test set: a distributed sampler would pad the test set and so change the metrics.
    """

    strategy_name = "client_parallel"

    @override
    def setup(self, trainer: Trainer) -> None:
        keep_samplers(trainer)
        super().setup(trainer)

    @override
    def configure_ddp(self) -> None:
        pass  # DDP wraps the module here

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register the strategy for ``Trainer(strategy="client_parallel")``."""
        if cls.strategy_name not in strategy_registry.available_strategies():
            strategy_registry.register(cls.strategy_name, cls, description=cls.__doc__)


ClientParallelStrategy.register_strategies(StrategyRegistry)


def agree(trainer: Trainer, update: Tensor) -> None:
    """Copy the first device's update (P,) to every device, in place: GPUs may sum in different orders."""
    if trainer.world_size > 1:
        torch.distributed.broadcast(update, src=0)


def gather_clients(trainer: Trainer, rows: Tensor, results: list[ClientResult]) -> tuple[Tensor, list[ClientResult]]:
    """Gather the updates and results of all devices, on every device.

    Args:
        trainer: the Trainer, which knows the devices.
        rows: (R, P) one row for each client of this device's share of the cohort, with the same R on every device.
        results: results of the first ``len(results)`` rows; padding and failed clients leave rows unused.

    Returns:
        The updates (K, P) and their results, ordered by client.
    """
    if trainer.world_size > 1:
        shares = [torch.empty_like(rows) for _ in range(trainer.world_size)]
        torch.distributed.all_gather(shares, rows)
        lists: list[Any] = [None] * trainer.world_size
        on_cpu = [
            replace(
                result,
                buffers=[buffer.cpu() for buffer in result.buffers],
                vectors={name: vector.cpu() for name, vector in result.vectors.items()},
            )
            for result in results
        ]
        torch.distributed.all_gather_object(lists, on_cpu)
        rows = torch.cat([share[: len(part)] for share, part in zip(shares, lists, strict=True)])
        results = [result for part in lists for result in part]
    order = sorted(range(len(results)), key=lambda i: results[i].client)
    rows = rows[: len(order)] if order == sorted(order) else rows[order]
    return rows, [results[i] for i in order]
