"""LocalAttack and OmniscientAttack: the base classes of attacks, which settle who attacks and where."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, LocalRun, Server, check_at_least

PURPOSE = "sign_flip"  # names the draw of the attackers; a new name would change the attackers of earlier runs


def draw_attackers(sizes: Tensor, count: int, generator: torch.Generator) -> frozenset[int]:
    """Draw the attackers among the clients that have data.

    >>> import torch
    >>> from fl_lightning.callbacks.attacks.attack import draw_attackers
    >>> sizes = torch.tensor([5, 0, 7])  # client 1 has no data
    >>> sorted(draw_attackers(sizes, count=2, generator=torch.Generator().manual_seed(0)))
    [0, 2]

    Args:
        sizes: (N,) number of examples of every client.
        count: number of attackers.
        generator: generator to draw with.

    Returns:
        Ids of the attackers.

    Raises:
        ConfigurationError: fewer than ``count`` clients have data.
    """
    candidates = torch.nonzero(sizes > 0).flatten()
    if count > len(candidates):
        raise ConfigurationError(
            f"num_byzantine must be at most {len(candidates)}, the number of clients with data, got {count}"
        )
    return frozenset(candidates[torch.randperm(len(candidates), generator=generator)[:count]].tolist())


class _Attack(FederatedCallback, ABC):
    """Base of the attacks: some clients, the attackers, send another vector in place of their update.

    Attackers train as all clients do, and send their true n_k and buffers. The draw of the attackers depends on the
    seed alone, so all attacks with one seed have the same attackers. An attacker attacks in every round in which it
    takes part.

    Args:
        num_byzantine: >= 0, number of attackers among the clients that have data.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer than ``num_byzantine`` clients have data.
    """

    def __init__(self, num_byzantine: int) -> None:
        check_at_least(0, num_byzantine=num_byzantine)
        self.num_byzantine = num_byzantine

    def attackers(self, orchestrator: Server, sizes: Tensor) -> frozenset[int]:
        """Return the ids of all attackers, also of those outside the cohort, given all clients' ``sizes`` (N,)."""
        return draw_attackers(sizes, self.num_byzantine, orchestrator.generator(PURPOSE))


class LocalAttack(_Attack):
    """Base of attacks in which each attacker knows its own update alone. A subclass defines :meth:`forge`.

    Attackers forge their updates on the client, so that every server rule receives forged updates. An attack changes
    the update that the rules before it in the list have made; the attacker's own model stays what it has learned.
    """

    post_processes = True

    @abstractmethod
    def forge(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        """Return the (P,) update that an attacker sends, given the update (P,) that it has learned."""

    @override
    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        attacks = run.client in self.attackers(orchestrator, run.sizes)
        return self.forge(orchestrator, run, update) if attacks else update


class OmniscientAttack(_Attack):
    """Base of attacks whose attackers know the honest clients' updates. A subclass defines :meth:`collude`.

    All attackers of a round send one and the same update. The attack replaces their updates where the server receives
    updates: list the attack before the server rules. ``max_update_norm`` looks at the updates before the attack. In a
    cohort without honest clients, the attackers send what they have learned.
    """

    settles = frozenset({"updates"})

    @abstractmethod
    def collude(self, honest: Tensor, num_attackers: int) -> Tensor:
        """Return the (P,) update that all attackers of the cohort send.

        Args:
            honest: (H, P) the updates of the cohort's H >= 1 honest clients.
            num_attackers: number of attackers in the cohort.
        """

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        attackers = self.attackers(orchestrator, orchestrator.data.sizes)
        mask = torch.tensor([client in attackers for client in cohort.clients], device=cohort.anchor.device)
        if mask.all() or not mask.any():
            return cohort
        deltas = cohort.deltas.clone()
        deltas[mask] = self.collude(deltas[~mask], int(mask.sum()))
        return cohort.replace(deltas=deltas)
