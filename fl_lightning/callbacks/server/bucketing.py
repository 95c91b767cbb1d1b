"""Bucketing: a robust rule sees means of a few clients in the place of single updates."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_at_least


def bucket_means(order: Tensor, size: int) -> Tensor:
    """Compute the means of the updates of each bucket: the first ``size`` in an order, the next ones, and so on.

    >>> import torch
    >>> from fl_lightning.callbacks.server.bucketing import bucket_means
    >>> bucket_means(torch.tensor([2, 0, 1]), size=2).tolist()
    [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]

    Args:
        order: (K,) a permutation of the updates.
        size: s, the number of updates in a bucket; the last one may have fewer.

    Returns:
        (⌈K/s⌉, K) matrix: row b has the coefficients of the mean of bucket b.
    """
    means = torch.zeros(-(-len(order) // size), len(order), dtype=torch.float64)
    for mean, bucket in zip(means, torch.split(order, size), strict=True):
        mean[bucket] = 1 / len(bucket)
    return means


class Bucketing(FederatedCallback):
    """Replaces the updates by the means of buckets of s clients, drawn anew each round (Karimireddy et al., 2022).

    Karimireddy et al., "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", Algorithm 1. The rules
    listed next see ⌈K/s⌉ updates, which differ less than the clients' do, and as many attackers as before, for an
    attacker spoils one bucket: their ``num_byzantine`` stays, of fewer updates. All clients count equally in their
    bucket, and all buckets equally. Rules that need to know whose an update is come before this one.

    Args:
        size: s >= 1, number of clients in a bucket; the last bucket may have fewer. 1 changes nothing but the weights.

    Raises:
        ConfigurationError: ``size`` is below 1.
    """

    settles = frozenset({"updates", "base weights"})
    anonymous = True
    groups = True

    def __init__(self, size: int = 2) -> None:
        check_at_least(1, size=size)
        self.size = size

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        order = torch.randperm(len(cohort.weights), generator=orchestrator.generator("bucketing", cohort.round))
        means = bucket_means(order, self.size)
        weights = torch.full((len(means),), 1 / len(means), dtype=torch.float64)
        return cohort.replace(mixing=means @ cohort.mixing, weights=weights)
