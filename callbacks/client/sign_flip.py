"""SignFlip: an attack to try server rules on, by clients that send the opposite of what they learned."""

import math

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedCallback, LocalRun, Server


def draw_attackers(sizes: Tensor, count: int, generator: torch.Generator) -> frozenset[int]:
    """Draw the attackers among the clients that have data.

    >>> import torch
    >>> from fl_lightning.callbacks.client.sign_flip import draw_attackers
    >>> sizes = torch.tensor([5, 0, 7])  # client 1 has no data
    >>> sorted(draw_attackers(sizes, count=2, generator=torch.Generator().manual_seed(0)))
    [0, 2]

    Args:
        sizes: (N,) number of examples of every client.
        count: number of attackers.
        generator: generator to draw with.

    Returns:
        Ids of the attackers.

    Raises:
        ConfigurationError: fewer than ``count`` clients have data.
    """
    candidates = torch.nonzero(sizes > 0).flatten()
    if count > len(candidates):
        raise ConfigurationError(
            f"num_byzantine must be at most {len(candidates)}, the number of clients with data, got {count}"
        )
    return frozenset(candidates[torch.randperm(len(candidates), generator=generator)[:count]].tolist())


class SignFlip(FederatedCallback):
    """Flips the sign of some clients' updates and scales them, as an attack to try server rules on.

    Attackers train as all clients do, but send -scale times their update. The attack acts on the client, so that every
    server rule meets it. The draw of the attackers depends on the seed alone; they attack in every round whose cohort
    they are in, and send their true n_k and buffers. List SignFlip after the other client rules, so that it flips the
    update that these rules have made.

    Args:
        num_byzantine: >= 0, number of attackers among the clients that have data.
        scale: >= 0, factor on the flipped update.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer than ``num_byzantine`` clients have data.
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
