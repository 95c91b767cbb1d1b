"""Coordinate-wise median of the updates."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server
from fl_lightning.callbacks.server.trimmed_mean import trimmed_mean


class CoordinateMedian(FederatedCallback):
    """Takes the median of the updates in each coordinate (Yin et al., 2018, Definition 1).

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (2018), Definition 1. Updates
    stand for the paper's gradients. The median of an even number of values is the mean of the two middle ones. n_k and
    other weights do not count.
    """

    anonymous = True

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        return cohort.by_coordinate(lambda values: trimmed_mean(values, (len(values) - 1) // 2))
