"""AFL: the weights of the clients for which the global model would be worst."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, Server, check_positive
from fl_lightning.callbacks.server.client_losses import ClientLosses


def nearest_on_simplex(point: Tensor) -> Tensor:
    """Return the weights (N,), at least 0 and with the sum 1, that are nearest to a point (N,).

    >>> import torch
    >>> from fl_lightning.callbacks.server.afl import nearest_on_simplex
    >>> nearest_on_simplex(torch.tensor([0.75, 1.25, -1.0]))  # 1/2 less for each, and none below 0
    tensor([0.2500, 0.7500, 0.0000])
    """
    point = point - point.max()  # which moves nothing, and keeps the sums below exact however large the losses
    ordered = point.sort(descending=True).values
    surplus = (ordered.cumsum(0) - 1) / torch.arange(1, len(point) + 1)
    return (point - surplus[ordered > surplus][-1]).clamp(min=0)


class AFL(ClientLosses):
    """Raises the weights of clients with large losses, for the worst mixture of clients (Mohri et al., 2019).

    λ starts uniform over the clients that have data. A cohort averages by its clients' λ; then λ moves by γ times their
    losses at the model that they started from, back onto the simplex. The paper has all clients in each round, and
    averages the models over the rounds, where here the last one stands. With a cohort in which all λ are zero, the
    average is uniform.

    Args:
        gamma: γ > 0, step size of λ.

    Raises:
        ConfigurationError: ``gamma`` is not positive.
    """

    settles = frozenset({"weights"})

    def __init__(self, gamma: float = 0.1) -> None:
        check_positive(gamma=gamma)
        self.gamma = gamma

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        clients, with_data = list(cohort.clients), (orchestrator.data.sizes > 0).double()
        mixture = self.state.get("mixture", with_data / with_data.sum())
        moved = mixture.clone()
        moved[clients] += self.gamma * self.losses(cohort)
        self.state["mixture"] = nearest_on_simplex(moved)
        own = mixture[clients]
        return cohort.replace(weights=own / own.sum()) if own.any() else cohort.uniform()
