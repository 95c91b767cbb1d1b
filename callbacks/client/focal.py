"""Focal loss: classes that are still hard count more."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedCallback, LocalRun


def focal_loss(logits: Tensor, targets: Tensor, gamma: float, beta: float) -> Tensor:
    """Mean of -β (1 - p_t)^γ log p_t, where p_t is the probability of the true class.

    Args:
        logits: (B, C).
        targets: (B,) class indices.
        gamma: γ >= 0; 0 gives β times the cross-entropy.
        beta: β > 0.

    Returns:
        A scalar.
    """
    cross_entropy = F.cross_entropy(logits, targets, reduction="none")
    miss = 1 - (-cross_entropy).exp()
    miss = miss.clamp(min=torch.finfo(miss.dtype).eps)  # at 0 a power below 1 has no derivative
    return (beta * miss**gamma * cross_entropy).mean()


class FocalLoss(FederatedCallback):
    """Focal loss in place of the module's own (Lin et al., 2017; on clients in FedMGC, slide "Handling of Class
    Imbalance"). The module's ``training_step`` must return a dict with "logits" (B, C) and "targets" (B,).

    Args:
        gamma: γ >= 0, how much less easy examples count. FedMGC states no value; 2 is Lin et al.'s.
        beta: β > 0, a factor on the loss.
    """

    def __init__(self, gamma: float = 2.0, beta: float = 1.0) -> None:
        if not gamma >= 0 or not beta > 0:
            raise ConfigurationError(f"gamma must be at least 0 and beta positive, got {gamma} and {beta}")
        self.gamma, self.beta = gamma, beta

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        if not isinstance(outputs, dict) or not {"logits", "targets"} <= outputs.keys():
            raise ConfigurationError(
                f"FocalLoss needs {type(run.module).__name__}.training_step to return a dict with 'loss', 'logits' and "
                f"'targets', got {sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__}"
            )
        return focal_loss(outputs["logits"], outputs["targets"], self.gamma, self.beta)
