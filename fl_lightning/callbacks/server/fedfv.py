"""FedFV: federated fair averaging."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server, project_conflicts
from fl_lightning.engine.updates.gram import EPSILON


def fair_projection(gram: Tensor, losses: Tensor, alpha: float) -> Tensor:
    """Remove the conflicts within a cohort; the mean of the updates keeps its length (Algorithms 1 and 2).

    Updates (1, -2) and (0, 1) conflict. The first has the smaller loss: adding 2 times the second makes the first
    (1, 0). The mean (1, -1) / 2 becomes (1, 1) / 2, which has the same length:

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedfv import fair_projection
    >>> gram = torch.tensor([[5.0, -2.0], [-2.0, 1.0]]).double()
    >>> fair_projection(gram, losses=torch.tensor([1.0, 3.0]).double(), alpha=0.5).tolist()
    [[1.0, 2.0], [0.0, 1.0]]

    Args:
        gram: (K, K) inner products of the updates.
        losses: (K,) training losses; nan counts as the largest loss; of equal losses, the one with the lower index
            comes first.
        alpha: α in [0, 1], see :class:`FedFV`.

    Returns:
        (K, K) matrix: row k combines the updates into client k's new update. The new updates are averaged uniformly.
    """
    ascending = losses.nan_to_num(nan=math.inf).argsort(stable=True)
    order = ascending.repeat(len(gram), 1)  # row k: the updates that k meets
    first = math.ceil(round((len(gram) - 1) * (1 - alpha), 9)) if alpha > 0 else len(gram)  # rounding must not add one
    order[ascending[first:]] = ascending[first:, None]  # kept, since no update is projected off itself
    projection = project_conflicts(gram, order)
    mean, even = projection.mean(0), torch.full_like(gram[0], 1 / len(gram))
    left, floor = mean @ gram @ mean, EPSILON * (mean.abs() @ gram.diagonal().sqrt()) ** 2
    return projection * ((even @ gram @ even).clamp(min=0) / left).sqrt() if left > floor else torch.zeros_like(gram)


def yielding(step: Tensor, rounds: Iterable[Sequence[Tensor]]) -> Tensor:
    """Remove a step's conflicts with updates that clients sent; the step keeps its length (Algorithm 3).

    The step (3, 4) loses the 3 that goes against the update (-1, 0), and is scaled back to the length 5:

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedfv import yielding
    >>> yielding(torch.tensor([3.0, 4.0]), rounds=[[torch.tensor([-1.0, 0.0])]])
    tensor([0., 5.])

    Args:
        step: (P,) the step whose conflicts are removed.
        rounds: updates (P,) of each round, the oldest round first.

    Returns:
        (P,) step; zero if nothing is left.
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
    """Removes the conflicts between updates, then the conflicts of their mean with recent updates (Wang et al., 2021).

    Wang et al., 2021, "Federated Learning with Fair Averaging", Algorithms 1 to 3. Conflicts are removed by projection.
    Each update meets the others in ascending order of their losses. A client's loss is the mean over its local steps;
    the paper takes the global model's loss before these steps. Recent updates are the latest updates of the clients
    that took part in the last τ rounds, the present round included.

    Args:
        alpha: α in [0, 1]: the ⌈(K-1)(1-α)⌉ clients of smallest loss have their updates projected, the others keep
            theirs. With α = 0 all updates are projected.
        tau: τ >= 0, number of rounds whose updates the step must not conflict with, the present round included. Before
            round τ, the mean is left as it is.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"updates", "base weights"})
    reads = frozenset({"losses"})

    def __init__(self, alpha: float = 0.1, tau: int = 1) -> None:
        if not (0 <= alpha <= 1 and tau >= 0):
            raise ConfigurationError(f"alpha must be in [0, 1] and tau at least 0, got {alpha} and {tau}")
        self.alpha, self.tau = alpha, tau

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.corrected(fair_projection(cohort.corrected_gram, cohort.losses, self.alpha)).uniform()

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        oldest = cohort.round - self.tau + 1
        latest: dict[int, tuple[int, Tensor]] = {}  # by client, the round of its latest update, and the update
        for name, row in self.state.items():
            client, round = map(int, name.split("/"))
            latest[client] = (round, row.to(update))
        for client, row in zip(cohort.clients, cohort.rows(), strict=True):
            latest[client] = (cohort.round, row)
        kept = {f"{client}/{round}": row for client, (round, row) in latest.items() if round > oldest}
        for name in self.state.keys() - kept.keys():
            del self.state[name]
        for name, row in kept.items():
            if name not in self.state:
                self.state[name] = row.clone()
        if cohort.round < self.tau:
            return update
        rounds: list[list[Tensor]] = [[] for _ in range(self.tau)]
        for client in sorted(latest):
            round, row = latest[client]
            if round >= oldest:
                rounds[round - oldest].append(row)
        return yielding(update, rounds)
