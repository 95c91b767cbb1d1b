"""Nearest-neighbour mixing: updates that lie near one another are averaged before a robust rule sees them."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server, check_at_least
from fl_lightning.callbacks.server.krum import squared_distances


def nearest_means(gram: Tensor, num_byzantine: int) -> Tensor:
    """Compute the means of each update's K - f nearest updates, the update itself among them.

    Three updates of one coordinate, f = 1: each is averaged with the nearer one of the others; of two that are equally
    near, with the first.

    >>> import torch
    >>> from fl_lightning.callbacks.server.nearest_neighbour_mixing import nearest_means
    >>> updates = torch.tensor([0.0, 1.0, 9.0]).double()
    >>> (nearest_means(updates.outer(updates), num_byzantine=1) @ updates).tolist()
    [0.5, 0.5, 5.0]

    Args:
        gram: (K, K) inner products of the updates.
        num_byzantine: f < K, the number of updates that may be anything.

    Returns:
        (K, K) matrix: row k has the coefficients of the mean that takes the place of update k.
    """
    count = len(gram) - num_byzantine
    nearest = squared_distances(gram).argsort(dim=1, stable=True)[:, :count]
    return torch.zeros_like(gram).scatter(1, nearest, 1 / count)


class NearestNeighbourMixing(FederatedCallback):
    """Replaces each update by the mean of the updates that lie nearest to it (NNM; Allouah et al., 2023, Algorithm 1).

    Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity". A mean is over the K - f
    nearest updates, the client's own among them; each counts once. Honest updates, which differ where data do, come
    nearer to one another, and a robust rule that is listed next can tell more of the attackers. The weights stay: put
    ``FedAvg("uniform")`` before rules that read them, such as :class:`GeometricMedian`, for the published ones.

    Args:
        num_byzantine: f >= 0, number of clients of a cohort that may send anything; below K, but for a cohort of one.

    Raises:
        ConfigurationError: ``num_byzantine`` is negative; in a round, the cohort is too small.
    """

    settles = frozenset({"updates"})
    anonymous = True

    def __init__(self, num_byzantine: int) -> None:
        check_at_least(0, num_byzantine=num_byzantine)
        self.num_byzantine = num_byzantine

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        size = len(cohort.weights)
        if size == 1:
            return cohort
        if size <= self.num_byzantine:
            raise ConfigurationError(
                f"NearestNeighbourMixing with num_byzantine={self.num_byzantine} needs more updates than that, got "
                f"{size} in round {cohort.round}: lower num_byzantine, or raise data.participation"
            )
        return cohort.corrected(nearest_means(cohort.corrected_gram, self.num_byzantine))
