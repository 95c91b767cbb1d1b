"""ALIE: attackers that stay within the spread of the honest updates."""

import math
from statistics import NormalDist

from torch import Tensor
from typing_extensions import override

from fl_lightning import ConfigurationError
from fl_lightning.callbacks.attacks.attack import OmniscientAttack


def largest_z(num_clients: int, num_attackers: int) -> float:
    """Number of standard deviations that the attackers may go from the mean (Baruch et al., 2019).

    To form a majority, the attackers need s = ⌊n/2 + 1⌋ - f honest clients that are farther from the mean than they
    are: z is the quantile of the standard normal distribution at (n - f - s) / (n - f). Attackers that are a majority
    by themselves get s = 1. If at most s clients are honest, z is 0.

    Example: of n = 50 clients, f = 24 attack. Then s = 26 - 24 = 2, and z is the quantile at 24 / 26:

    >>> from fl_lightning.callbacks.attacks.alie import largest_z
    >>> round(largest_z(50, 24), 2)
    1.43

    Args:
        num_clients: n, the number of clients in the cohort.
        num_attackers: f, the number of attackers among them, below n.
    """
    needed = max(num_clients // 2 + 1 - num_attackers, 1)
    honest = num_clients - num_attackers
    return NormalDist().inv_cdf((honest - needed) / honest) if needed < honest else 0.0


class ALIE(OmniscientAttack):
    """Shifts the attackers' updates from the honest mean, by as much as the honest spread hides (Baruch et al., 2019).

    All attackers send mean - z·std of the honest clients' updates (Baruch et al., "A Little Is Enough: Circumventing
    Defenses For Distributed Learning", 2019). The mean counts each client once, and std divides by the number of honest
    clients. The paper's attackers estimate both from their own updates; here the attackers know the honest updates.
    List ALIE before the server rules.

    Args:
        num_byzantine: >= 0, number of attackers among the clients that have data.
        z: number of standard deviations; by default :func:`largest_z` of the cohort.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer than ``num_byzantine`` clients have data.
    """

    def __init__(self, num_byzantine: int, z: float | None = None) -> None:
        super().__init__(num_byzantine)
        if z is not None and not math.isfinite(z):
            raise ConfigurationError(f"z must be finite, or null for the largest z that stays hidden, got {z}")
        self.z = z

    @override
    def collude(self, honest: Tensor, num_attackers: int) -> Tensor:
        z = largest_z(len(honest) + num_attackers, num_attackers) if self.z is None else self.z
        return honest.mean(0) - z * honest.std(0, correction=0)
