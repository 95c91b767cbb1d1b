"""ConFIG: a step that agrees with every update to the same degree."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_choice, cosines
from fl_lightning.engine.updates.gram import EPSILON


def conflict_free_weights(gram: Tensor, weights: Tensor) -> Tensor:
    """Compute the coefficients of the updates in the step whose cosines with them are in the ratio of the weights.

    With the cosines C of the updates of norms d, the direction u has the coefficients (C⁺ λ) / d, scaled to ‖u‖ = 1;
    the step is (Σ_k g_k·u) u. Where no direction has such cosines, C⁺ takes the nearest in the sense of least squares.

    The unit vectors of the updates (2, 0) and (0, 4) add up to the direction (1, 1), on which (2, 0) has the length √2
    and (0, 4) has 2 √2; the step is the sum of both, (3, 3):

    >>> import torch
    >>> from fl_lightning.callbacks.server.conflict_free import conflict_free_weights
    >>> gram = torch.tensor([[4.0, 0.0], [0.0, 16.0]]).double()
    >>> conflict_free_weights(gram, weights=torch.tensor([0.5, 0.5]).double()).round(decimals=6).tolist()
    [1.5, 0.75]

    Args:
        gram: (K, K) inner products of the updates.
        weights: (K,) λ, of which the ratios count.

    Returns:
        (K,) coefficients of the updates in the step; zeros if no direction agrees with the updates, up to rounding.
    """
    lengths = gram.diagonal().sqrt()
    angles = cosines(gram)
    solved: Tensor = torch.linalg.pinv(angles, rtol=EPSILON, hermitian=True) @ weights
    reached = angles @ solved  # λ, or the nearest cosines that there are
    squared = solved @ reached  # ‖u‖² before u is scaled
    if squared <= EPSILON * (weights @ weights):
        return torch.zeros_like(weights)
    coefficients = torch.where(lengths > 0, solved / lengths, 0.0)
    length = lengths @ reached  # of the step, times ‖u‖
    return coefficients * (length / squared)


class ConFIG(FederatedCallback):
    """Steps where the cosines with all updates are equal, as far as the updates agree on it (Liu et al., 2025).

    Liu et al., 2025, "ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks", eq. 2 and 3. Clients
    stand for losses, updates for gradients. No client loses by a step in a direction that has the same angle to all
    updates; the step's length is the sum of the updates' lengths along it. The cosines are in the ratio of the run's
    weights, which the released code calls direction weights; the published rule has equal ones (:class:`FedAvg`'s
    "uniform"). Opposite updates leave no such direction, and give no step. A zero update has no angle and does not
    count. The pseudo-inverse is that of the cosines (K, K), in place of the unit updates (K, P).

    Args:
        reduction: "sum" makes the step as long as published; "mean" divides it by K.

    Raises:
        ConfigurationError: ``reduction`` is neither.
    """

    settles = frozenset({"weights"})

    def __init__(self, reduction: Literal["mean", "sum"] = "mean") -> None:
        check_choice("reduction", reduction, "mean", "sum")
        self.reduction = reduction

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        weights = conflict_free_weights(cohort.corrected_gram, cohort.weights)
        return cohort.replace(weights=weights / len(weights) if self.reduction == "mean" else weights)
