"""IPM: attackers that turn the average against the honest updates."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import check_not_negative
from fl_lightning.callbacks.attacks.attack import OmniscientAttack


class IPM(OmniscientAttack):
    """Replaces the attackers' updates by -ε times the honest mean: inner-product manipulation (Xie et al., 2019).

    Xie et al., "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation" (2019). A small ε is
    hard to tell from honest updates; a large one makes the inner product of the average and the honest mean negative.
    The mean counts each client once. List IPM before the server rules.

    Args:
        num_byzantine: >= 0, number of attackers among the clients that have data.
        epsilon: ε >= 0, the factor of the honest mean.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer than ``num_byzantine`` clients have data.
    """

    def __init__(self, num_byzantine: int, epsilon: float = 0.5) -> None:
        super().__init__(num_byzantine)
        check_not_negative(epsilon=epsilon)
        self.epsilon = epsilon

    @override
    def collude(self, honest: Tensor, num_attackers: int) -> Tensor:
        return -self.epsilon * honest.mean(0)
