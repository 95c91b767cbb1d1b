"""Mimic: attackers that copy one honest client, so that the others count less."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, Server, check_at_least
from fl_lightning.callbacks.attacks.attack import OmniscientAttack


class Mimic(OmniscientAttack):
    """Sends a copy of the honest update that lies farthest along the direction in which they differ most.

    Karimireddy et al., "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing" (2022), Appendix B: no
    vector is suspicious, but what one client knows counts several times. The mean μ and the direction z of largest
    variance are learned over the first rounds, z by one step of power iteration a round, and the update with the
    largest product with z is copied; from then on, always that of the last one copied, as in the released code. In a
    round in which this client is away, the update with the largest product is. List Mimic before the server rules.

    Args:
        num_byzantine: >= 0, number of attackers among the clients that have data.
        warmup: number of rounds in which the direction is learned, at least 1.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer than ``num_byzantine`` clients have data.
    """

    def __init__(self, num_byzantine: int, warmup: int = 20) -> None:
        super().__init__(num_byzantine)
        check_at_least(1, warmup=warmup)
        self.warmup = warmup

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        attackers = self.attackers(orchestrator, orchestrator.data.sizes)
        self._honest = [client for client in cohort.clients if client not in attackers]
        return super().aggregate(orchestrator, cohort)

    @override
    def collude(self, honest: Tensor, num_attackers: int) -> Tensor:
        wide = honest.double()
        learned = int(self.recall("rounds", torch.tensor(0)))
        learns = learned < self.warmup
        if learns:
            self._learn(wide, learned)
        elif (target := int(self.state["target"])) in self._honest:
            return honest[self._honest.index(target)]
        direction = self.recall("direction", torch.zeros_like(wide[0]))
        chosen = int((wide @ direction).argmax())
        if learns:
            self.state["target"] = torch.tensor(self._honest[chosen])
        return honest[chosen]

    def _learn(self, honest: Tensor, learned: int) -> None:
        """Take the honest updates (H, P) of a round into the mean and the direction, given the number of rounds so far.

        The direction begins at the update that lies farthest from the mean, where the released code draws one.
        """
        mean = torch.lerp(self.recall("mean", honest.mean(0)), honest.mean(0), 1 / (learned + 1))
        apart = honest - mean
        before = self.recall("direction", apart[apart.norm(dim=1).argmax()])
        turned = (apart @ before) @ apart
        if turned.any():
            now = turned / turned.norm()
            before = torch.lerp(before, now, 1 / (learned + 1))
            self.state["direction"] = before / before.norm()
        self.state["mean"] = mean
        self.state["rounds"] = torch.tensor(learned + 1)
