"""Coordinate-wise median."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server
from fl_lightning.callbacks.server.trimmed_mean import trimmed_mean


class CoordinateMedian(FederatedCallback):
    """Takes the median of the updates in each coordinate; of an even number, the mean of the two middle values.

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (2018), Definition 1, of
    client updates in place of gradients. n_k and other weights do not count.
    """

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        return cohort.by_coordinate(lambda values: trimmed_mean(values, (len(values) - 1) // 2))
