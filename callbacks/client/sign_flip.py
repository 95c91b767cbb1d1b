"""SignFlip: clients that send the opposite of what they learned, to try server rules on."""

import math

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedCallback, LocalRun, Server


def draw_attackers(sizes: Tensor, count: int, generator: torch.Generator) -> frozenset[int]:
    """Draw ``count`` of the clients that have data, given the sizes (N,) of all.

    Raises:
        ConfigurationError: there are fewer.
    """
    candidates = torch.nonzero(sizes > 0).flatten()
    if count > len(candidates):
        raise ConfigurationError(
            f"num_byzantine must be at most {len(candidates)}, the number of clients with data, got {count}"
        )
    return frozenset(candidates[torch.randperm(len(candidates), generator=generator)[:count]].tolist())


class SignFlip(FederatedCallback):
    """An attack for experiments: some clients train as all do, but send -scale times their update.

    It acts on the client, so that every server rule meets it. The attackers depend on the seed alone and attack in
    every round whose cohort they are in; n_k and buffers they send honestly. List it after the other client rules: it
    flips what they made of the update.

    Args:
        num_byzantine: >= 0, the clients that attack, of those that have data.
        scale: >= 0.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer clients have data.
    """

    def __init__(self, num_byzantine: int, scale: float = 10.0) -> None:
        if not num_byzantine >= 0:
            raise ConfigurationError(f"num_byzantine must be at least 0, got {num_byzantine}")
        if not 0 <= scale < math.inf:
            raise ConfigurationError(f"scale must be at least 0 and finite, got {scale}")
        self.num_byzantine, self.scale = num_byzantine, scale

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        draw = orchestrator.generator("sign_flip")
        if run.client in draw_attackers(orchestrator.data.sizes, self.num_byzantine, draw):
            run.params.copy_(run.anchor - self.scale * (run.params - run.anchor))
