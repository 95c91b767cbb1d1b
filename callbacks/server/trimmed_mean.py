"""Trimmed mean: each coordinate averaged without its largest and smallest values."""

import math

from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server


def trimmed_mean(values: Tensor, trim: int) -> Tensor:
    """Mean of each column without its ``trim`` largest and ``trim`` smallest values.

    Args:
        values: (K, B).
        trim: from 0 to (K-1)//2; the last is the median.

    Returns:
        (B,) means.
    """
    ordered = values.T.contiguous().sort(dim=1).values  # rows sort faster than columns
    return ordered[:, trim : len(values) - trim].mean(1)


class TrimmedMean(FederatedCallback):
    """Averages each coordinate of the updates without its largest and smallest values, the others equally.

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (2018), Definition 2, of
    client updates in place of gradients. n_k and other weights do not count.

    Args:
        ratio: β in [0, 0.5): ⌊βK⌋ values are dropped at either end. At least the share of byzantine clients.
    """

    def __init__(self, ratio: float) -> None:
        if not 0 <= ratio < 0.5:
            raise ConfigurationError(f"ratio must be in [0, 0.5), got {ratio}")
        self.ratio = ratio

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        size = len(cohort.clients)
        trim = math.floor(round(self.ratio * size, 9))  # 0.29 · 100 is 28.999999999999996 in floating point
        return cohort.by_coordinate(lambda values: trimmed_mean(values, min(trim, (size - 1) // 2)))
