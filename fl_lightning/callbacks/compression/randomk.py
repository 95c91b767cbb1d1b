"""RandomK: clients send some entries of their updates, which the seed draws."""

from math import ceil

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_within


class RandomK(FederatedCallback):
    """Sends a random part of the update, scaled so that its mean over the draws is the update (Konečný et al., 2016).

    Client and server draw the entries from the same seed, anew for each client and round: no index is sent.

    Args:
        share: share of the shared parameters that is sent, in (0, 1].

    Raises:
        ConfigurationError: ``share`` is out of range.
    """

    post_processes = True

    def __init__(self, share: float = 0.01) -> None:
        check_within("(0, 1]", share=share)
        self.share = share

    @override
    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        shared, draw = run.shared, orchestrator.generator("random k", run.round, run.client)
        count = ceil(self.share * len(shared))
        chosen = shared[torch.randperm(len(shared), generator=draw)[:count]].to(update.device)
        run.upload_bytes = count * update.element_size()
        return torch.zeros_like(update).index_copy_(0, chosen, update[chosen] * (len(shared) / max(count, 1)))
