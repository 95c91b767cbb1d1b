"""Dominant gradient correction, the server rule of FedMGC."""

import math

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_within, project_conflicts

DIGITS = 12
SMALLEST_LOSS = 1e-12  # a client that fits its data perfectly still has a finite rank


def dominant_updates(gram: Tensor, losses: Tensor, ratio: float) -> Tensor:
    """Select the updates that agree most with all updates, relative to their loss (Algorithm 1).

    The projection p_i is the sum of p_ij = (g_i·g_j)(1/‖g_i‖ + 1/‖g_j‖)/2 over all j, j = i included; the rank is
    z_i = p_i / l_i. With a zero update, p_ij is zero. Ties go to the lower client id.

    Three orthogonal unit updates have the projection 1 each, so that the losses alone decide:

    >>> import torch
    >>> from fl_lightning.callbacks.server.dgc import dominant_updates
    >>> dominant_updates(torch.eye(3).double(), losses=torch.tensor([2.0, 1.0, 4.0]).double(), ratio=0.5).tolist()
    [1, 0]

    Args:
        gram: (K, K) inner products of the updates.
        losses: (K,) training losses l. A client that took no step has the loss nan, which counts as infinite.
        ratio: λ in (0, 1], share of the updates to select.

    Returns:
        (⌈λK⌉,) indices, largest z first.
    """
    norms = gram.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(norms > 0, 1 / norms, 0.0)
    projections = gram * (inverse[:, None] + inverse) / 2
    losses = losses.nan_to_num(nan=math.inf).clamp(min=SMALLEST_LOSS)  # nan: a client that took no step
    ranks = projections.sum(1) / losses
    ranks = (ranks / ranks.abs().max().clamp(min=SMALLEST_LOSS)).round(decimals=DIGITS)  # rounding must not break a tie
    count = math.ceil(round(ratio * len(gram), 9))  # 0.07 · 100 is 7.000000000000001 in floating point
    return ranks.argsort(descending=True, stable=True)[:count]


class DominantGradientCorrection(FederatedCallback):
    """Removes from each update what conflicts with the dominant updates, then averages uniformly (Wang et al., FedMGC).

    Wang et al., "Joint Focal Loss and Dominant Gradient Correction for Gradient Conflict in Federated Learning"
    (FedMGC), Algorithms 1 and 2. Each update is projected off the dominant updates that it conflicts with. Dominant
    updates agree most with all updates, relative to their loss: see :func:`dominant_updates`. FedMGC is this rule
    together with :class:`FocalLoss` on the clients.

    Args:
        ratio: λ in (0, 1], share of the updates that are dominant. The published slides state no value; 0.7 did best on
            the digits data with strong label skew (docs/results/index.md).

    Raises:
        ConfigurationError: ratio is out of range.
    """

    settles = frozenset({"updates", "base weights"})
    reads = frozenset({"losses"})

    def __init__(self, ratio: float = 0.7) -> None:
        check_within("(0, 1]", ratio=ratio)
        self.ratio = ratio

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        gram = cohort.corrected_gram
        dominant = dominant_updates(gram, cohort.losses, self.ratio)
        return cohort.corrected(project_conflicts(gram, dominant.expand(len(gram), -1))).uniform()
