"""Krum and Multi-Krum: keep the updates that lie nearest to their neighbours."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server, check_at_least
from fl_lightning.engine.updates.gram import EPSILON

DIGITS = 12  # significant digits of a score; the rest is rounding


def squared_distances(gram: Tensor) -> Tensor:
    """Return the squared distances (K, K) of updates, given their inner products (K, K).

    >>> import torch
    >>> from fl_lightning.callbacks.server.krum import squared_distances
    >>> updates = torch.tensor([0.0, 1.0, 3.0]).double()
    >>> squared_distances(updates.outer(updates))[0].tolist()
    [0.0, 1.0, 9.0]
    """
    sizes = gram.diagonal()[:, None] + gram.diagonal()
    squared = sizes - 2 * gram
    return squared.masked_fill(squared <= EPSILON * sizes, 0.0)  # equal updates have no distance


def krum_scores(gram: Tensor, num_byzantine: int) -> Tensor:
    """Sum of the squared distances from each update to its K - f - 2 nearest others.

    Four updates of one coordinate, f = 1: each score is the squared distance to the nearest other update.

    >>> import torch
    >>> from fl_lightning.callbacks.server.krum import krum_scores
    >>> updates = torch.tensor([0.0, 1.0, 3.0, 10.0]).double()
    >>> krum_scores(updates.outer(updates), num_byzantine=1).tolist()
    [1.0, 1.0, 4.0, 49.0]

    Args:
        gram: (K, K) inner products of the updates, K >= f + 2.
        num_byzantine: f, the number of clients that may send anything.

    Returns:
        (K,) scores; updates with small scores are trusted.
    """
    squared = squared_distances(gram)
    return squared.sort(dim=1).values[:, 1 : len(gram) - num_byzantine - 1].sum(1)  # the first is the update itself


def krum(gram: Tensor, num_byzantine: int, num_selected: int) -> list[int]:
    """Select the updates with the smallest scores and return their indices, best first; ties go to the lower index.

    Each score is rounded by itself, so that a huge update does not make differences between the others look like
    rounding.

    >>> import torch
    >>> from fl_lightning.callbacks.server.krum import krum
    >>> updates = torch.tensor([3.0, 1.0, 0.0, 10.0]).double()  # with the scores 4, 1, 1 and 49
    >>> krum(updates.outer(updates), num_byzantine=1, num_selected=2)
    [1, 2]
    """
    scores = [float(f"{score:.{DIGITS}g}") for score in krum_scores(gram, num_byzantine).tolist()]
    return sorted(range(len(scores)), key=scores.__getitem__)[:num_selected]


class Krum(FederatedCallback):
    """Keeps the updates that lie nearest to their neighbours, and averages them (Blanchard et al., 2017, Section 4).

    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (2017), Section 4;
    Multi-Krum with ``num_selected`` > 1. The kept updates have the smallest sums of squared distances to their
    K - f - 2 nearest others; the average is uniform. Updates stand for the paper's gradients; n_k does not count. A
    cohort of one client gives this client's update.

    Args:
        num_byzantine: f >= 0, number of clients of a cohort that may send anything. A cohort must have K >= 2f + 3
            clients.
        num_selected: m >= 1, number of updates that are averaged, at most K.

    Raises:
        ConfigurationError: an argument is out of range; in a round, the cohort is too small.
    """

    settles = frozenset({"weights"})
    anonymous = True

    def __init__(self, num_byzantine: int, num_selected: int = 1) -> None:
        check_at_least(0, num_byzantine=num_byzantine)
        check_at_least(1, num_selected=num_selected)
        self.num_byzantine, self.num_selected = num_byzantine, num_selected

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        size, f, m = len(cohort.weights), self.num_byzantine, self.num_selected
        if size == 1:
            return cohort.uniform()
        if size < max(2 * f + 3, m):
            raise ConfigurationError(
                f"Krum with num_byzantine={f} and num_selected={m} needs K >= 2f + 3 = {2 * f + 3} clients a round and "
                f"K >= {m}, got K={size} in round {cohort.round}: lower num_byzantine or num_selected, or "
                "raise data.participation"
            )
        weights = torch.zeros_like(cohort.weights)
        weights[krum(cohort.corrected_gram, f, m)] = 1 / m
        return cohort.replace(weights=weights)
