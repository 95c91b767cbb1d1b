"""Min-Max: attackers that go as far from the honest mean as honest updates lie apart."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import check_choice
from fl_lightning.callbacks.attacks.attack import OmniscientAttack


def farthest(offsets: Tensor, direction: Tensor, reach: Tensor) -> Tensor:
    """Compute the largest γ >= 0 with which mean + γ p is within a distance of every update.

    Two updates at -1 and 1, which are 2 apart, and p = -1: at γ = 1, the far one is 2 away.

    >>> import torch
    >>> from fl_lightning.callbacks.attacks.min_max import farthest
    >>> farthest(torch.tensor([[1.0], [-1.0]]), torch.tensor([-1.0]), reach=torch.tensor(4.0))
    tensor(1.)

    Args:
        offsets: (H, P) the mean less each update.
        direction: (P,) p.
        reach: the largest squared distance.

    Returns:
        γ, the smallest of the roots of ‖offset + γ p‖² = reach over the updates; 0 where p is zero.
    """
    square = direction @ direction
    if not square > 0:
        return torch.zeros_like(square)
    along = offsets @ direction
    root = (along**2 - square * (offsets.square().sum(1) - reach)).clamp(min=0).sqrt()
    return ((root - along) / square).min()


class MinMax(OmniscientAttack):
    """Sends honest mean + γ p, with the γ that keeps it no farther from an honest update than two of them are apart.

    Shejwalkar & Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
    Learning" (2021), eq. 8: γ is the largest with max_k ‖mean + γ p - u_k‖ <= max_jk ‖u_j - u_k‖ over the honest
    updates u. Here γ is the root of a quadratic equation; the released code halves steps of a search until they are
    below 1e-5, and never goes beyond γ = 20. The mean counts each client once. List MinMax before the server rules.

    Args:
        num_byzantine: >= 0, number of attackers among the clients that have data.
        direction: p: "std", minus the standard deviations of the updates' coordinates (by H - 1); "unit", minus the
            mean by its length; "sign", minus the signs of the mean.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer than ``num_byzantine`` clients have data.
    """

    def __init__(self, num_byzantine: int, direction: Literal["std", "unit", "sign"] = "std") -> None:
        super().__init__(num_byzantine)
        check_choice("direction", direction, "std", "unit", "sign")
        self.direction = direction

    @override
    def collude(self, honest: Tensor, num_attackers: int) -> Tensor:
        wide = honest.double()
        mean = wide.mean(0)
        if self.direction == "std" and len(wide) > 1:
            away = -wide.std(0)
        elif self.direction == "unit" and mean.any():
            away = -mean / mean.norm()
        else:  # one honest update lies from none apart, so that the attackers send it
            away = -mean.sign()
        reach = torch.stack([(wide - update).square().sum(1).max() for update in wide]).max()
        return (mean + farthest(mean - wide, away, reach) * away).to(honest)
