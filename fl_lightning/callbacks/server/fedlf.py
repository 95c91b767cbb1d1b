"""FedLF: in every layer, a step that helps all clients, and evens their losses."""

from collections.abc import Callable, Iterable
from itertools import accumulate

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, Server, cosines
from fl_lightning.callbacks.server.by_layer import combine
from fl_lightning.callbacks.server.client_losses import ClientLosses
from fl_lightning.callbacks.server.fedmgda import shortest_combination
from fl_lightning.engine.updates.gram import EPSILON

CANCELLED = 1e-9  # squared length of a combination of unit vectors; a shorter one is the solver's rounding


def evening(losses: Tensor) -> Tensor:
    """Compute how the clients' updates add up to the one that turns the losses F towards equal ones (eq. 5).

    The coefficients are those of the gradient of -cos(1, F), up to a factor: cos F / ‖F‖ - 1 / √K.

    The losses 3 and 4 have the cosine 7 / (5 √2) with equal ones. The larger loss is to fall, the smaller to rise:

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedlf import evening
    >>> evening(torch.tensor([3.0, 4.0]).double()).round(decimals=4).tolist()
    [-0.1131, 0.0849]

    Args:
        losses: (K,) losses.

    Returns:
        (K,) coefficients; zeros if all losses are equal.
    """
    even = torch.full_like(losses, len(losses) ** -0.5)
    if not losses.any():
        return torch.zeros_like(losses)
    unit = losses / losses.norm()
    leaning: Tensor = (unit @ even) * unit - even
    return leaning.masked_fill(leaning.abs() <= EPSILON, 0.0)


def fair_descent(gram: Tensor, leaning: Tensor) -> Tensor:
    """Compute the coefficients of the updates in the direction that agrees with each, and evens the losses (eq. 7, 8).

    The updates, and their sum with the coefficients ``leaning``, are scaled to the updates' mean length. The direction
    is the shortest vector of their convex hull.

    Two orthogonal updates of the lengths 1 and 3, scaled to 2, and the evening one along (-1, 1): the shortest vector
    between (2, 0) and (0, 2) is (1, 1), and between (2, 0) and the evening one, (-√2, √2), half their sum (0.29, 0.71).

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedlf import fair_descent
    >>> gram = torch.tensor([[1.0, 0.0], [0.0, 9.0]]).double()
    >>> fair_descent(gram, leaning=torch.zeros(2).double()).round(decimals=4).tolist()
    [1.0, 0.3333]
    >>> fair_descent(gram, leaning=torch.tensor([-1.0, 1.0]).double()).round(decimals=4).tolist()
    [0.2929, 0.2357]

    Args:
        gram: (M, M) inner products of the updates, first those of the K clients of the cohort.
        leaning: (K,) coefficients of the evening update.

    Returns:
        (M,) coefficients; zeros if the hull has zero in it. Zero updates have no direction and do not count.
    """
    lengths = gram.diagonal().sqrt()
    angles = cosines(gram)
    fair = torch.zeros_like(lengths)
    fair[: len(leaning)] = leaning
    squared = fair @ angles @ fair
    if squared > EPSILON * leaning @ leaning:
        fair = fair / squared.sqrt()
    corners = torch.cat([torch.eye(len(gram), dtype=gram.dtype), fair[None]])
    start = torch.full((len(corners),), 1 / len(corners), dtype=gram.dtype)
    found = shortest_combination(corners @ angles @ corners.T, start, epsilon=1.0) @ corners
    if found @ angles @ found <= CANCELLED:
        return torch.zeros_like(lengths)
    return torch.where(lengths > 0, lengths[: len(leaning)].mean() * found / lengths, 0.0)


def by_layer(gram: Callable[[int, int], Tensor], sizes: Iterable[int], leaning: Tensor) -> list[tuple[int, Tensor]]:
    """Compute :func:`fair_descent` in each layer; one that is left without a direction joins the next, or the last.

    Args:
        gram: function from two columns to the (M, M) inner products of the updates over the columns from one to the
            other; first come the updates of the K clients of the cohort.
        sizes: number of parameters of each layer, with the sum P.
        leaning: (K,) coefficients of the evening update.

    Returns:
        For each layer, its number of parameters and the coefficients (M,) of the updates; nothing if no layer has a
        direction.
    """
    layers: list[tuple[int, Tensor]] = []
    start = 0
    stop = 0
    for stop in accumulate(sizes):
        coefficients = fair_descent(gram(start, stop), leaning)
        if coefficients.any():
            layers.append((stop - start, coefficients))
            start = stop
    while start < stop and layers:
        size, _ = layers.pop()
        start -= size
        coefficients = fair_descent(gram(start, stop), leaning)
        if coefficients.any():
            layers.append((stop - start, coefficients))
            break
    return layers


class FedLF(ClientLosses):
    """Steps, in every layer, where no client loses, and where the clients' losses become more equal (Pan et al., 2024).

    Pan et al., 2024, "FedLF: Layer-Wise Fair Federated Learning", Algorithm 1, with each parameter as a layer and
    each layer's updates scaled to their mean length, as in the released code. Updates stand for gradients. A layer
    whose updates cancel joins the next layer, as published; the released code leaves it. Losses are those at the model
    that clients start from. The step is as long as the uniform mean of the updates; the run's weights do not count. If
    the updates cancel in the whole model, no step is taken, nor if updates are equal and losses are not: evening the
    losses would then take a step backwards.

    The last updates of clients that are away count like those of the cohort, if the clients took part in the last τ
    rounds, where τ is the number of clients that have taken part before over the cohort's size, rounded down. The
    server keeps the last update of every client, N × P numbers, on the CPU.
    """

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        own = [cohort.combine(row) for row in cohort.mixing]
        members = cohort.replace(deltas=torch.stack(own + self._absent(cohort)))
        sizes = [part.numel() for part in orchestrator.split(cohort.anchor)]
        layers = by_layer(members.updates.gram, sizes, evening(self.losses(cohort)))
        self._remember(cohort, own)
        if not layers:
            return torch.zeros_like(cohort.anchor)
        step = combine(members, [size for size, _ in layers], torch.stack([row for _, row in layers]))
        size = len(own)
        mean = members.gram[:size, :size].mean().clamp(min=0).sqrt()
        return step * (float(mean) / float(step.double().norm()))

    def _absent(self, cohort: Cohort) -> list[Tensor]:
        """Return the last updates (P,) of the clients that are away, and took part in the last τ rounds."""
        last: dict[int, int] = {}  # by client, the last round that it took part in
        for name in self.state:
            kind, client = name.split("/")
            if kind == "round":
                last[int(client)] = int(self.state[name])
        recent = cohort.round - len(last) // len(cohort.clients)
        away = [client for client in sorted(last) if client not in cohort.clients and last[client] >= recent]
        return [self.recall(f"update/{client}", cohort.anchor) for client in away]

    def _remember(self, cohort: Cohort, own: list[Tensor]) -> None:
        for client, update in zip(cohort.clients, own, strict=True):
            self.state[f"update/{client}"] = update.cpu()
            self.state[f"round/{client}"] = torch.tensor(cohort.round)
