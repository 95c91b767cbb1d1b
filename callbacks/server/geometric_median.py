"""Geometric median: the point whose weighted distances to the updates sum up to the least."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server

SETTLED = 1e-12  # change of the weights, which sum up to 1


def distances(gram: Tensor, combination: Tensor) -> Tensor:
    """(K,) distances of vectors with a Gram matrix (K, K) to a linear combination (K,) of them."""
    products = gram @ combination
    return (gram.diagonal() - 2 * products + combination @ products).clamp(min=0).sqrt()


def geometric_median(gram: Tensor, weights: Tensor, iterations: int, smoothing: float) -> Tensor:
    """Weights of the smoothed geometric median, by Weiszfeld's iteration β_k ∝ p_k / max(ν, ‖u_k - Σ_j β_j u_j‖).

    Args:
        gram: (K, K) inner products of the u_k.
        weights: (K,) p_k >= 0, not all zero; β starts from them.
        iterations: at most; it ends when β has settled.
        smoothing: ν in units of the median norm of the updates that are not zero.

    Returns:
        (K,) β, of sum 1. The p_k where all updates are zero.
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
    """RFA: moves the model by the geometric median of the updates, weighted by the cohort's weights (n_k by default).

    Pillutla et al., "Robust Aggregation for Federated Learning" (2022), with the smoothed Weiszfeld algorithm there.
    They stop after 3 iterations, since each costs a round of secure aggregation; here one costs K² operations, so that
    it runs until it has settled. Their ν is absolute; here it follows the scale of the updates. A client that
    overstates n_k gains weight: put ``FedAvg("uniform")`` before it where that may happen.

    Args:
        iterations: >= 1, at most.
        smoothing: ν > 0, in units of the median norm: nearer updates pull no stronger.
    """

    settles = frozenset({"weights"})

    def __init__(self, iterations: int = 100, smoothing: float = 1e-6) -> None:
        if not iterations >= 1:
            raise ConfigurationError(f"iterations must be at least 1, got {iterations}")
        if not smoothing > 0:
            raise ConfigurationError(f"smoothing must be greater than 0, got {smoothing}")
        self.iterations, self.smoothing = iterations, smoothing

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        gram = cohort.corrected_gram
        return cohort.replace(weights=geometric_median(gram, cohort.weights, self.iterations, self.smoothing))
