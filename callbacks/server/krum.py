"""Krum and Multi-Krum: the updates that are nearest to their nearest others."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server
from fl_lightning.engine.gram import EPSILON

DIGITS = 12  # significant ones of a score: less is rounding's


def krum_scores(gram: Tensor, num_byzantine: int) -> Tensor:
    """Sum of the squared distances from each update to its K - f - 2 nearest others.

    Args:
        gram: (K, K) inner products, K >= f + 2.
        num_byzantine: f.

    Returns:
        (K,) scores, the smaller the more trusted.
    """
    sizes = gram.diagonal()[:, None] + gram.diagonal()
    squared = sizes - 2 * gram
    squared = squared.masked_fill(squared <= EPSILON * sizes, 0.0)  # equal updates are at no distance
    return squared.sort(dim=1).values[:, 1 : len(gram) - num_byzantine - 1].sum(1)  # the first is its own


def krum(gram: Tensor, num_byzantine: int, num_selected: int) -> list[int]:
    """Indices of the updates with the smallest scores, best first; ties go to the lower one.

    Each score is rounded by itself, lest a huge update make the others' differences look like rounding.
    """
    scores = [float(f"{score:.{DIGITS}g}") for score in krum_scores(gram, num_byzantine).tolist()]
    return sorted(range(len(scores)), key=scores.__getitem__)[:num_selected]


class Krum(FederatedCallback):
    """Keeps the updates that have the closest K - f - 2 others, and averages them uniformly.

    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (2017), Section 4;
    Multi-Krum with ``num_selected`` > 1. Client updates stand for their gradients; n_k does not count. A cohort of one
    client is that client.

    Args:
        num_byzantine: f >= 0, the clients of a cohort that may send anything. K >= 2f + 3 is required.
        num_selected: m >= 1, the updates that are averaged, at most K.

    Raises:
        ConfigurationError: an argument is out of range; in a round, the cohort is too small for it.
    """

    settles = frozenset({"weights"})

    def __init__(self, num_byzantine: int, num_selected: int = 1) -> None:
        if not num_byzantine >= 0:
            raise ConfigurationError(f"num_byzantine must be at least 0, got {num_byzantine}")
        if not num_selected >= 1:
            raise ConfigurationError(f"num_selected must be at least 1, got {num_selected}")
        self.num_byzantine, self.num_selected = num_byzantine, num_selected

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        size, f, m = len(cohort.clients), self.num_byzantine, self.num_selected
        if size == 1:
            return cohort.uniform()
        if size < max(2 * f + 3, m):
            raise ConfigurationError(
                f"Krum with num_byzantine={f} and num_selected={m} needs K >= 2f + 3 = {2 * f + 3} clients a round and "
                f"K >= {m}, got K={size} in round {cohort.round}: lower them, or raise data.participation"
            )
        weights = torch.zeros_like(cohort.weights)
        weights[krum(cohort.corrected_gram, f, m)] = 1 / m
        return cohort.replace(weights=weights)
