"""Geometric median: the point whose weighted distances to the updates sum up to the least."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_at_least, check_positive

SETTLED = 1e-12  # the iteration ends when no weight changes by more; the weights sum to 1


def distances(gram: Tensor, combination: Tensor) -> Tensor:
    """Compute the (K,) distances of vectors, given by their Gram matrix (K, K), to a linear combination (K,) of them.

    The numbers 1 and 5 and their mean 3:

    >>> import torch
    >>> from fl_lightning.callbacks.server.geometric_median import distances
    >>> numbers = torch.tensor([1.0, 5.0]).double()
    >>> distances(numbers.outer(numbers), combination=torch.tensor([0.5, 0.5]).double()).tolist()
    [2.0, 2.0]
    """
    products = gram @ combination
    return (gram.diagonal() - 2 * products + combination @ products).clamp(min=0).sqrt()


def geometric_median(gram: Tensor, weights: Tensor, iterations: int, smoothing: float) -> Tensor:
    """Compute the weights β whose sum Σ_k β_k u_k is the smoothed geometric median of the updates.

    Weiszfeld's iteration: β_k ∝ p_k / max(ν, ‖u_k - Σ_j β_j u_j‖).

    In one coordinate, with equal p_k, the geometric median is the median:

    >>> import torch
    >>> from fl_lightning.callbacks.server.geometric_median import geometric_median
    >>> updates = torch.tensor([0.0, 1.0, 10.0]).double()
    >>> weights = geometric_median(updates.outer(updates), torch.ones(3).double(), iterations=100, smoothing=1e-6)
    >>> round(float(weights @ updates), 4)
    1.0

    Args:
        gram: (K, K) inner products of the u_k.
        weights: (K,) p_k >= 0, not all zero; β starts from p.
        iterations: largest number of iterations; fewer if β settles.
        smoothing: ν, in units of the median norm of the updates that are not zero.

    Returns:
        (K,) β, which sums to 1; p scaled to sum 1 if all updates are zero.
    """
    combination = weights / weights.sum()
    norms = gram.diagonal().clamp(min=0).sqrt()
    if not norms.any():
        return combination
    smallest = float(smoothing * norms[norms > 0].median())
    for _ in range(iterations):
        pulls = weights / distances(gram, combination).clamp(min=smallest)
        before, combination = combination, pulls / pulls.sum()
        if (combination - before).abs().max() <= SETTLED:
            break
    return combination


class GeometricMedian(FederatedCallback):
    """Weighs the updates so that their sum is their geometric median (RFA; Pillutla et al., 2022).

    Pillutla et al., "Robust Aggregation for Federated Learning" (2022), by the paper's smoothed Weiszfeld algorithm.
    The cohort's weights, n_k by default, weigh the distances to the median. The paper stops after 3 iterations, since
    each costs a round of secure aggregation; here an iteration costs K² operations, and the algorithm runs until it
    settles. The paper's ν is absolute; here ν follows the scale of the updates. A client that overstates n_k gains
    weight: put ``FedAvg("uniform")`` before this rule if that may happen.

    Args:
        iterations: >= 1, largest number of iterations.
        smoothing: ν > 0, in units of the median norm: updates nearer than ν to the median pull no stronger than at ν.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"weights"})
    anonymous = True

    def __init__(self, iterations: int = 100, smoothing: float = 1e-6) -> None:
        check_at_least(1, iterations=iterations)
        check_positive(smoothing=smoothing)
        self.iterations, self.smoothing = iterations, smoothing

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        gram = cohort.corrected_gram
        return cohort.replace(weights=geometric_median(gram, cohort.weights, self.iterations, self.smoothing))
