"""DnC: updates that stand out along the direction in which updates differ most are left out."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_at_least, check_positive


def outlier_scores(updates: Tensor) -> Tensor:
    """Return the squared projections (K,) of the rows (K, B), less their mean, on their first singular direction.

    >>> import torch
    >>> from fl_lightning.callbacks.server.dnc import outlier_scores
    >>> outlier_scores(torch.tensor([[0.0, 0.1], [1.0, 0.0], [5.0, 0.0]]).double()).round(decimals=1)
    tensor([4., 1., 9.], dtype=torch.float64)
    """
    centred = updates - updates.mean(0)
    sizes, directions = torch.linalg.eigh(centred @ centred.T)
    scores: Tensor = sizes[-1].clamp(min=0) * directions[:, -1] ** 2
    return scores


class DnC(FederatedCallback):
    """Leaves out updates that stand out along the direction of largest variance (Shejwalkar & Houmansadr, 2021).

    In each of some draws of coordinates, the ⌊c f⌋ updates with the largest scores of :func:`outlier_scores` are left
    out; those that stay in all draws are averaged uniformly (Algorithm 2). If there are none, those that stay most
    often are.

    Args:
        num_byzantine: f >= 0, number of clients of a cohort that may send anything.
        coordinates: number of coordinates in a draw, at most all P.
        draws: number of draws.
        factor: c > 0, how many updates are left out, as a multiple of f.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"weights"})
    anonymous = True

    def __init__(self, num_byzantine: int, coordinates: int = 10_000, draws: int = 5, factor: float = 1.0) -> None:
        check_at_least(0, num_byzantine=num_byzantine)
        check_at_least(1, coordinates=coordinates, draws=draws)
        check_positive(factor=factor)
        self.num_byzantine, self.coordinates, self.draws, self.factor = num_byzantine, coordinates, draws, factor

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        size = len(cohort.weights)
        stay = max(1, size - int(self.factor * self.num_byzantine))
        stays = torch.zeros(size, dtype=torch.int64)
        for draw in range(self.draws):
            order = torch.randperm(len(cohort.anchor), generator=orchestrator.generator("dnc", cohort.round, draw))
            scores = outlier_scores(cohort.columns(order[: self.coordinates].sort().values))
            stays[scores.argsort(stable=True)[:stay]] += 1
        weights = (stays == stays.max()).double()
        return cohort.replace(weights=weights / weights.sum())
