"""Centred clipping: no client moves the aggregate further from the last round's than a threshold."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server
from fl_lightning.callbacks.server.geometric_median import distances
from fl_lightning.callbacks.server.norm_clipping import clipping_factors
from fl_lightning.engine.cohort import COLUMNS


def centred_clipping(gram: Tensor, threshold: float, iterations: int) -> Tensor:
    """Coefficients of v ← v + mean_k (u_k - v) min(1, τ / ‖u_k - v‖).

    Args:
        gram: (K+1, K+1) inner products of u_1, …, u_K and, last, the v to start from.
        threshold: τ.
        iterations: of the formula.

    Returns:
        (K+1,) coefficients of the same vectors in the last v, of sum 1.
    """
    combination = torch.zeros(len(gram), dtype=gram.dtype)
    combination[-1] = 1
    for _ in range(iterations):
        steps = clipping_factors(distances(gram, combination)[:-1], threshold) / (len(gram) - 1)
        combination = torch.cat([steps, steps.new_zeros(1)]) + (1 - steps.sum()) * combination
    return combination


def products_with(updates: Tensor, vector: Tensor) -> Tensor:
    """(K,) inner products of updates (K, P) with a vector (P,), float64 on the CPU, in blocks of columns."""
    blocks = zip(torch.split(updates, COLUMNS, dim=1), torch.split(vector, COLUMNS), strict=True)
    return torch.stack([rows.double() @ part.double() for rows, part in blocks]).sum(0).cpu()


class CentredClipping(FederatedCallback):
    """Clips the updates' differences to the last round's aggregate, and moves from there by their mean.

    Karimireddy et al., "Learning from History for Byzantine Robust Optimization" (2021), Algorithm 2. v starts from
    zero in round 1. n_k and other weights do not count. Their workers send momentum; here a client sends its update, so
    set the momentum in its local optimizer. The iterations run on K + 1 coefficients, the updates are read twice.

    Args:
        threshold: τ > 0, in the units of an update's norm.
        iterations: L >= 1.
    """

    def __init__(self, threshold: float, iterations: int = 1) -> None:
        if not threshold > 0:
            raise ConfigurationError(f"threshold must be greater than 0, got {threshold}")
        if not iterations >= 1:
            raise ConfigurationError(f"iterations must be at least 1, got {iterations}")
        self.threshold, self.iterations = threshold, iterations

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        centre = self.recall("centre", torch.zeros_like(cohort.anchor))  # (P,)
        products = cohort.mixing @ products_with(cohort.deltas, centre)  # (K,)
        corner = products_with(centre[None], centre)  # (1,)
        top = torch.cat([cohort.corrected_gram, products[:, None]], dim=1)
        gram = torch.cat([top, torch.cat([products, corner])[None]])
        combination = centred_clipping(gram, self.threshold, self.iterations)
        moved = (combination[:-1] @ cohort.mixing).to(cohort.deltas) @ cohort.deltas
        self.state["centre"] = moved + float(combination[-1]) * centre
        return self.state["centre"]
