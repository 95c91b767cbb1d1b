"""GradVac: gradient vaccine."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_choice, check_within, norms, partners
from fl_lightning.engine.updates.gram import EPSILON


def vaccinate(gram: Tensor, targets: Tensor, beta: float, order: Tensor) -> tuple[Tensor, Tensor]:
    """Turn each update towards others, one after another, until the cosine with each is at least its target.

    For each update k and each j in row k of ``order``: let φ be the cosine of g_k, as turned so far, and the original
    g̃_j. If φ is below the target φ̂_kj, then g_k += ‖g_k‖ (φ̂ √(1-φ²) - φ √(1-φ̂²)) / (‖g̃_j‖ √(1-φ̂²)) g̃_j, which makes
    the cosine φ̂. Then φ̂_kj ← (1-β) φ̂_kj + β φ.

    Orthogonal unit updates: the first turns to a cosine of 0.6 with the second, (1, 3/4); the second has its target.

    >>> import torch
    >>> from fl_lightning.callbacks.server.gradvac import vaccinate
    >>> targets = torch.tensor([[0.0, 0.6], [0.0, 0.0]]).double()
    >>> mixing, targets = vaccinate(torch.eye(2).double(), targets, beta=0.5, order=torch.tensor([[1], [0]]))
    >>> mixing.round(decimals=6).tolist(), targets.round(decimals=6).tolist()
    ([[1.0, 0.75], [0.0, 1.0]], [[0.0, 0.3], [0.0, 0.0]])

    Args:
        gram: (K, K) inner products of the updates.
        targets: (K, K) φ̂ in [-1, 1]; row k has those of update k.
        beta: β in [0, 1].
        order: (K, K-1) row k lists the partners of update k in the order in which they are met.

    Returns:
        (K, K) matrix, whose row k combines the updates into the turned update k; (K, K) the new targets. A pair with a
        zero update has no cosine and is left as it is.
    """
    mixing = torch.eye(len(gram), dtype=gram.dtype)
    targets = targets.clone()
    own = gram.diagonal().sqrt()
    rows = torch.arange(len(gram))
    for j in order.T:  # (K,) one partner for every update
        lengths = norms(gram, mixing)
        scale = lengths * own[j]
        products = (mixing * gram[j]).sum(1)
        angles = torch.where(scale > 0, products / scale, 0.0).clamp(-1, 1)
        aim = targets[rows, j]
        apart = (1 - aim**2).sqrt()
        turned = (scale > 0) & (angles < aim - EPSILON) & (apart > 0)
        added = lengths * (aim * (1 - angles**2).sqrt() - angles * apart) / (own[j] * apart)
        mixing[rows, j] += torch.where(turned, added, 0.0)
        targets[rows, j] = torch.where(scale > 0, (1 - beta) * aim + beta * angles, aim)
    return mixing, targets


class GradVac(FederatedCallback):
    """Turns updates towards one another until their cosines reach those of earlier rounds (Wang et al., 2021).

    Wang et al., 2021, "Gradient Vaccine: Investigating and Improving Multi-task Optimization in Massively Multilingual
    Models", eq. 4 and 5, Algorithm 1. Clients stand for tasks, updates for gradients, of which the whole is compared,
    where the paper compares parts such as layers. Each pair of clients has a target of its own in either direction, a
    moving average of its cosines in the rounds that both have trained in, which begins at 0: with β = 0 the rule is
    :class:`PCGrad`. The targets of a client, one for each of the N clients, are kept beside what other rules keep of
    clients: 8 N² bytes in all, which ``model.client_states: disk`` keeps in files.

    Args:
        beta: β in [0, 1], the weight of the newest cosine; the paper has 0.01.
        reduction: "sum" adds the turned updates, as published; "mean" averages them, which makes the step K times
            shorter. The run's weights do not count.
        order: order in which an update meets the others: "random", drawn anew each round (as published), or
            "ascending" or "descending" by client id.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"updates", "base weights"})

    def __init__(
        self,
        beta: float = 0.01,
        reduction: Literal["mean", "sum"] = "mean",
        order: Literal["random", "ascending", "descending"] = "random",
    ) -> None:
        check_within("[0, 1]", beta=beta)
        check_choice("reduction", reduction, "mean", "sum")
        check_choice("order", order, "random", "ascending", "descending")
        self.beta, self.reduction, self.order = beta, reduction, order

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        gram, clients = cohort.corrected_gram, list(cohort.clients)
        order = partners(len(gram), self.order, orchestrator.generator("gradient vaccine", cohort.round))
        start = torch.zeros(len(orchestrator.data.sizes), dtype=gram.dtype)
        kept = torch.stack([self.recall(f"targets/{client}", start) for client in clients])  # (K, N)
        mixing, targets = vaccinate(gram, kept[:, clients], self.beta, order)
        kept[:, clients] = targets
        for client, row in zip(clients, kept, strict=True):
            self.state[f"targets/{client}"] = row.clone()
        turned = cohort.corrected(mixing).uniform()
        scale = len(clients) if self.reduction == "sum" else 1
        return turned.replace(weights=turned.weights * scale)
