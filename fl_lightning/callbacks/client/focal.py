"""FocalLoss: examples that are still hard count more."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, check_not_negative, check_positive
from fl_lightning.callbacks.client.classes import logits_and_targets


def focal_loss(logits: Tensor, targets: Tensor, gamma: float, beta: float) -> Tensor:
    """Mean of -β (1 - p_t)^γ log p_t over a batch, where p_t is the probability of the true class.

    Equal logits of two classes give p_t = 1/2, and ln 2 = 0.6931:

    >>> import torch
    >>> from fl_lightning.callbacks.client.focal import focal_loss
    >>> logits, targets = torch.zeros(1, 2), torch.tensor([0])
    >>> focal_loss(logits, targets, gamma=0.0, beta=1.0)  # the cross-entropy
    tensor(0.6931)
    >>> focal_loss(logits, targets, gamma=1.0, beta=1.0)  # half as much
    tensor(0.3466)

    Args:
        logits: (B, C) logits of B examples for C classes.
        targets: (B,) class indices.
        gamma: γ >= 0; 0 gives β times the cross-entropy.
        beta: β > 0, factor on the loss.

    Returns:
        A scalar.
    """
    return weighted(F.cross_entropy(logits, targets, reduction="none"), gamma, beta).mean()


def weighted(cross_entropy: Tensor, gamma: float, beta: float) -> Tensor:
    """Return each example's focal loss, given its cross-entropy -log p_t."""
    miss = 1 - (-cross_entropy).exp()
    miss = miss.clamp(min=torch.finfo(miss.dtype).eps)  # a power γ < 1 has no finite derivative at 0
    return beta * miss**gamma * cross_entropy


class FocalLoss(FederatedCallback):
    """Replaces each client's loss by the focal loss, in which easy examples count less (Lin et al., 2017).

    FedMGC uses the focal loss on clients (slide "Handling of Class Imbalance"). The module's ``training_step`` must
    return a dict with "logits" (B, C) and "targets" (B,).

    Args:
        gamma: γ >= 0; the larger γ, the less easy examples count. FedMGC states no value; Lin et al. use 2.
        beta: β > 0, factor on the loss.

    Raises:
        ConfigurationError: an argument is out of range; in a round, ``training_step`` returns no such dict.
    """

    stacks = True
    settles = frozenset({"loss"})

    def __init__(self, gamma: float = 2.0, beta: float = 1.0) -> None:
        check_not_negative(gamma=gamma)
        check_positive(beta=beta)
        self.gamma, self.beta = gamma, beta

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        return focal_loss(*logits_and_targets(self, run, outputs), self.gamma, self.beta)
