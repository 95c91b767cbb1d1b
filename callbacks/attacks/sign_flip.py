"""SignFlip: attackers that send the opposite of what they learned."""

import math

from torch import Tensor
from typing_extensions import override

from fl_lightning import ConfigurationError, LocalRun, Server
from fl_lightning.callbacks.attacks.attack import LocalAttack


class SignFlip(LocalAttack):
    """Flips the sign of the attackers' updates and scales them: each attacker sends -scale times its update.

    List SignFlip after the client rules.

    Args:
        num_byzantine: >= 0, number of attackers among the clients that have data.
        scale: >= 0, factor on the flipped update.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer than ``num_byzantine`` clients have data.
    """

    def __init__(self, num_byzantine: int, scale: float = 10.0) -> None:
        super().__init__(num_byzantine)
        if not 0 <= scale < math.inf:
            raise ConfigurationError(f"scale must be at least 0 and finite, got {scale}")
        self.scale = scale

    @override
    def forge(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        return -self.scale * update
