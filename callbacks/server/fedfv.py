"""FedFV: federated fair averaging."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server, project_conflicts
from fl_lightning.engine.gram import EPSILON


def fair_projection(gram: Tensor, losses: Tensor, alpha: float) -> Tensor:
    """Remove the conflicts within a cohort; the mean of the updates keeps its length (Algorithms 1 and 2).

    Args:
        gram: (K, K) inner products of the updates.
        losses: (K,) training losses: nan counts as the largest, ties go by client order.
        alpha: α in [0, 1].

    Returns:
        (K, K): row k combines the updates into client k's new one, to be averaged uniformly.
    """
    ascending = losses.nan_to_num(nan=math.inf).argsort(stable=True)
    order = ascending.repeat(len(gram), 1)  # row k: whom k meets
    first = math.ceil(round((len(gram) - 1) * (1 - alpha), 9)) if alpha > 0 else len(gram)  # not by rounding one more
    order[ascending[first:]] = ascending[first:, None]  # an update is not projected off itself
    projection = project_conflicts(gram, order)
    mean, even = projection.mean(0), torch.full_like(gram[0], 1 / len(gram))
    left, floor = mean @ gram @ mean, EPSILON * (mean.abs() @ gram.diagonal().sqrt()) ** 2
    return projection * ((even @ gram @ even).clamp(min=0) / left).sqrt() if left > floor else torch.zeros_like(gram)


def yielding(step: Tensor, rounds: Iterable[Sequence[Tensor]]) -> Tensor:
    """Remove a step's conflicts with what clients sent; its length stays (Algorithm 3).

    Args:
        step: (P,).
        rounds: the updates (P,) of each round, the oldest first.
    """
    start = running = step.double()
    for sent in rounds:
        against = [u for u in sent if u.double() @ running < -EPSILON * u.double().norm() * running.norm()]
        if against:
            total = torch.stack(against).sum(0, dtype=torch.float64)
            running = running - (total @ running) / (total @ total) * total
    length, left = start.norm(), running.norm()
    return (length / left * running).to(step) if left**2 > EPSILON * length**2 else torch.zeros_like(step)


class FedFV(FederatedCallback):
    """Projects updates off those that they conflict with, then their mean off what other clients sent of late.

    Wang et al., 2021, "Federated Learning with Fair Averaging", Algorithms 1 to 3. Updates are met in ascending order
    of loss, the mean over a client's local steps; the paper takes that of the global model before them.

    Args:
        alpha: α in [0, 1]; all but the ⌈(K-1)(1-α)⌉ clients of smallest loss keep their update, none if α = 0.
        tau: τ >= 0, rounds whose updates a step must not conflict with, its own the last; none before round τ.
    """

    settles = frozenset({"updates", "base weights"})

    def __init__(self, alpha: float = 0.1, tau: int = 1) -> None:
        if not (0 <= alpha <= 1 and tau >= 0):
            raise ConfigurationError(f"alpha must be in [0, 1] and tau at least 0, got {alpha} and {tau}")
        self.alpha, self.tau = alpha, tau

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.corrected(fair_projection(cohort.corrected_gram, cohort.losses, self.alpha)).uniform()

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        now, oldest = cohort.round, cohort.round - self.tau + 1
        last = {int(k): (int(r), row.to(update)) for name, row in self.state.items() for k, r in [name.split("/")]}
        last |= {k: (now, row) for k, row in zip(cohort.clients, cohort.deltas, strict=True)}  # client: (round, update)
        self.state = {f"{k}/{r}": row.clone() if r == now else row for k, (r, row) in last.items() if r > oldest}
        rounds = [[row for _, (r, row) in sorted(last.items()) if r == then] for then in range(oldest, now + 1)]
        return yielding(update, rounds) if now >= self.tau else update
