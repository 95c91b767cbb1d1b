"""FedMGDA+: the common descent direction nearest to the average."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_within, cosines
from fl_lightning.callbacks.server.simplex import minimize_on_simplex


def shortest_combination(gram: Tensor, start: Tensor, epsilon: float) -> Tensor:
    """Find the weights λ on the simplex, with |λ_k - λ0_k| <= ε, for which ‖Σ λ_k u_k‖² is smallest.

    A zero update gets no weight; the other updates' λ0 are then scaled to sum to 1.

    Of two orthogonal unit updates the shortest combination has equal weights; ε stops λ on the way there.

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedmgda import shortest_combination
    >>> weights = shortest_combination(torch.eye(2).double(), start=torch.tensor([0.9, 0.1]).double(), epsilon=0.1)
    >>> weights.round(decimals=4).tolist()
    [0.8, 0.2]

    Args:
        gram: (K, K) inner products of the u_k, whose lengths are one or zero.
        start: (K,) λ0, which is scaled to sum to 1.
        epsilon: ε in [0, 1], the most that a weight may move.

    Returns:
        (K,) λ; ``start`` as it is if all u_k are zero.
    """
    present = gram.diagonal() > 0
    if not present.any():
        return start
    start = start * present / (start * present).sum()
    lower, upper = (start - epsilon).clamp(min=0), (start + epsilon).clamp(max=1) * present

    def objective(weights: Tensor) -> tuple[Tensor, Tensor]:
        gradient = gram @ weights
        return weights @ gradient / 2, gradient

    return minimize_on_simplex(objective, start, lower, upper)


class FedMGDAPlus(FederatedCallback):
    """Scales the updates to unit norm and weighs them so that their sum is shortest (FedMGDA+; Hu et al., 2022).

    Hu et al., 2022, "Federated Learning Meets Multi-Objective Optimization" (FedMGDA+). The weights λ stay within ε of
    λ0, the weights that earlier rules have set. The length of the step is at most 1, whatever the updates' lengths: the
    server optimizer's learning rate is the method's η. A zero update has no direction and gets no weight.

    Args:
        epsilon: ε in [0, 1], the most that a weight may move from λ0: 0 averages the unit updates, 1 is plain MGDA on
            the unit updates.

    Raises:
        ConfigurationError: epsilon is out of range.
    """

    settles = frozenset({"weights"})

    def __init__(self, epsilon: float = 0.1) -> None:
        check_within("[0, 1]", epsilon=epsilon)
        self.epsilon = epsilon

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        gram = cohort.corrected_gram
        squared = gram.diagonal()
        weights = shortest_combination(cosines(gram), cohort.weights, self.epsilon)
        return cohort.scaled(torch.where(squared > 0, squared.rsqrt(), 0.0)).replace(weights=weights)
