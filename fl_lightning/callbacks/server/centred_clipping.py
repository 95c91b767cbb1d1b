"""Centred clipping: no client pulls the aggregate further away from the last round's than a threshold."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server, check_at_least
from fl_lightning.callbacks.server.geometric_median import distances
from fl_lightning.callbacks.server.norm_clipping import clipping_factors


def centred_clipping(gram: Tensor, threshold: float, iterations: int) -> Tensor:
    """Compute the aggregate v ← v + mean_k (u_k - v) min(1, τ / ‖u_k - v‖) as coefficients of the vectors.

    Updates 4 and 1 of one coordinate, and v = 0, with τ = 2: the 4 is clipped to 2, and (2 + 1) / 2 = 1.5 is the new v.

    >>> import torch
    >>> from fl_lightning.callbacks.server.centred_clipping import centred_clipping
    >>> vectors = torch.tensor([4.0, 1.0, 0.0]).double()
    >>> coefficients = centred_clipping(vectors.outer(vectors), threshold=2.0, iterations=1)
    >>> coefficients.tolist(), float(coefficients @ vectors)
    ([0.25, 0.5, 0.25], 1.5)

    Args:
        gram: (K+1, K+1) inner products of u_1, …, u_K and, last, the v to start from.
        threshold: τ, the largest distance ‖u_k - v‖ that is not clipped.
        iterations: number of times that the formula is applied.

    Returns:
        (K+1,) coefficients of these vectors in the final v; they sum to 1.
    """
    combination = torch.zeros(len(gram), dtype=gram.dtype)
    combination[-1] = 1
    for _ in range(iterations):
        steps = clipping_factors(distances(gram, combination)[:-1], threshold) / (len(gram) - 1)
        combination = torch.cat([steps, steps.new_zeros(1)]) + (1 - steps.sum()) * combination
    return combination


class CentredClipping(FederatedCallback):
    """Clips each update's distance from the last round's aggregate, then averages uniformly (Karimireddy et al., 2021).

    Karimireddy et al., "Learning from History for Byzantine Robust Optimization" (2021), Algorithm 2. The aggregate v
    moves by the mean of the clipped differences u_k - v. In round 1, v starts from zero. The clients' weights, such as
    n_k, are not used. The paper's workers send momentum; here a client sends its update, so set momentum in the
    clients' local optimizer. The iterations run on K + 1 coefficients; the updates are read twice.

    Args:
        threshold: τ > 0, the largest distance ‖u_k - v‖ that is not clipped, in the units of an update's norm.
        iterations: L >= 1, number of times that the differences to v are clipped and v moves.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    anonymous = True

    def __init__(self, threshold: float, iterations: int = 1) -> None:
        if not threshold > 0:
            raise ConfigurationError(f"threshold must be greater than 0, got {threshold}")
        check_at_least(1, iterations=iterations)
        self.threshold, self.iterations = threshold, iterations

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        centre = self.recall("centre", torch.zeros_like(cohort.anchor))  # (P,)
        wide = centre.double()
        products = cohort.mixing @ cohort.products(wide)  # (K,)
        corner = (wide @ wide)[None].cpu()  # (1,)
        top = torch.cat([cohort.corrected_gram, products[:, None]], dim=1)
        gram = torch.cat([top, torch.cat([products, corner])[None]])
        combination = centred_clipping(gram, self.threshold, self.iterations)
        moved = cohort.combine(combination[:-1] @ cohort.mixing)
        self.state["centre"] = moved + float(combination[-1]) * centre
        return self.state["centre"]
