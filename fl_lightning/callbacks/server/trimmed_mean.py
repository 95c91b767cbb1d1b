"""Trimmed mean: each coordinate averaged without its largest and smallest values."""

import math

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_within


def trimmed_mean(values: Tensor, trim: int) -> Tensor:
    """Mean of each column without its ``trim`` largest and ``trim`` smallest values.

    >>> import torch
    >>> from fl_lightning.callbacks.server.trimmed_mean import trimmed_mean
    >>> values = torch.tensor([[1.0, 5.0], [2.0, 7.0], [4.0, 9.0], [99.0, -99.0]])
    >>> trimmed_mean(values, trim=1).tolist()  # the means of 2 and 4, and of 5 and 7
    [3.0, 6.0]

    Args:
        values: (K, B) the values of K clients in B coordinates.
        trim: number of values dropped at either end, from 0 to (K-1)//2; the largest gives the median.

    Returns:
        (B,) means.
    """
    ordered = values.T.clone(memory_format=torch.contiguous_format)  # rows sort faster than columns
    if ordered.device.type == "cpu":
        ordered.numpy().sort(axis=1)  # in place, five times as fast as torch
    else:
        ordered = ordered.sort(dim=1).values
    return ordered[:, trim : len(values) - trim].mean(1)


class TrimmedMean(FederatedCallback):
    """Averages each coordinate of the updates without its largest and smallest values (Yin et al., 2018, Definition 2).

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (2018), Definition 2. Updates
    stand for the paper's gradients. The remaining values count equally; n_k and other weights do not count.

    Args:
        ratio: β in [0, 0.5): ⌊βK⌋ values are dropped at either end. β should be at least the share of byzantine
            clients.

    Raises:
        ConfigurationError: ratio is out of range.
    """

    anonymous = True

    def __init__(self, ratio: float) -> None:
        check_within("[0, 0.5)", ratio=ratio)
        self.ratio = ratio

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        size = len(cohort.weights)
        trim = math.floor(round(self.ratio * size, 9))  # 0.29 · 100 is 28.999999999999996 in floating point
        return cohort.by_coordinate(lambda values: trimmed_mean(values, min(trim, (size - 1) // 2)))
