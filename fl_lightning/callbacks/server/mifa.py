"""MIFA: clients that are away count with their last update."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server


class MIFA(FederatedCallback):
    """Steps by the mean of all clients' last updates, those of clients that are away included (Gu et al., 2021).

    The mean is over all N clients that have data, each counted once; the update of a client that has not yet taken part
    is zero, where the paper waits until all have. The server keeps N × P numbers.
    """

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        total = self.recall("sum", torch.zeros_like(cohort.anchor)).clone()
        for client, row in zip(cohort.clients, cohort.mixing, strict=True):
            update = cohort.combine(row)
            total += update - self.recall(f"update/{client}", torch.zeros_like(update))
            self.state[f"update/{client}"] = update.cpu()
        self.state["sum"] = total
        return total / orchestrator.data.num_with_data
