"""Bulyan: each coordinate averaged near its median, over updates that Krum trusts."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server, check_at_least
from fl_lightning.callbacks.server.krum import krum


def bulyan_selection(gram: Tensor, num_byzantine: int) -> list[int]:
    """Select K - 2f updates one by one, each by Krum among those that are left, and return their indices.

    Of r that are left, the update is selected that is nearest to its r - f - 2 nearest others, or to one at least.

    >>> import torch
    >>> from fl_lightning.callbacks.server.bulyan import bulyan_selection
    >>> updates = torch.tensor([9.0, 0.0, 1.0, 2.5, 4.0]).double()
    >>> bulyan_selection(updates.outer(updates), num_byzantine=1)  # 1 is near 0 and 2.5; then 2.5 near 4; then 4 near 0
    [2, 3, 1]

    Args:
        gram: (K, K) inner products of the updates.
        num_byzantine: f.
    """
    left, chosen = list(range(len(gram))), list[int]()
    while len(left) > 2 * num_byzantine:
        others = min(num_byzantine, len(left) - 3)
        chosen.append(left.pop(krum(gram[left][:, left], others, 1)[0]))
    return chosen


def near_median(values: Tensor, count: int) -> Tensor:
    """Average the ``count`` values of each column (K,) of (K, B) that are nearest to its median: (B,)."""
    distance = (values - values.quantile(0.5, dim=0)).abs()
    return values.gather(0, distance.argsort(stable=True, dim=0)[:count]).mean(0)


class Bulyan(FederatedCallback):
    """Selects updates by Krum, then averages each coordinate's values near the median (El Mhamdi et al., 2018).

    Of K updates, K - 2f are selected one by one, and of their values in a coordinate the K - 4f nearest to the median
    are averaged; n_k and other weights do not count.

    Args:
        num_byzantine: f >= 0, number of clients of a cohort that may send anything. A cohort must have K >= 4f + 3
            clients.

    Raises:
        ConfigurationError: ``num_byzantine`` is negative; in a round, the cohort is too small.
    """

    anonymous = True

    def __init__(self, num_byzantine: int) -> None:
        check_at_least(0, num_byzantine=num_byzantine)
        self.num_byzantine = num_byzantine

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        size, f = len(cohort.weights), self.num_byzantine
        if size < 4 * f + 3 and size > 1:
            raise ConfigurationError(
                f"Bulyan with num_byzantine={f} needs K >= 4f + 3 = {4 * f + 3} clients a round, got K={size} in round "
                f"{cohort.round}: lower num_byzantine, or raise data.participation"
            )
        chosen = torch.tensor(bulyan_selection(cohort.corrected_gram, f) if size > 1 else [0])
        return cohort.by_coordinate(lambda values: near_median(values[chosen], max(1, size - 4 * f)))
