"""CRAFT: in every layer, the direction nearest to the last one that agrees with every client."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_positive, cosines
from fl_lightning.callbacks.server.by_layer import combine, grams
from fl_lightning.engine.module.params import layers
from fl_lightning.engine.updates.gram import EPSILON


def nearest_aligned(gram: Tensor, shares: Tensor, products: Tensor, length: Tensor) -> tuple[Tensor, float]:
    """Compute the direction nearest to the last one whose inner products with the unit updates are the clients' shares.

    With the last direction r of length 1, the rows U of unit updates, their cosines C = U Uᵀ and the shares ρ, the
    direction is r + Uᵀ C⁺ (ρ - U r). Where no direction has such products, C⁺ takes the nearest in the sense of least
    squares. A zero update does not count, and a client that is left alone gives its update.

    Two orthogonal updates of the lengths 1 and 2, and a last direction along the first: its product with the first goes
    from 1 to 1/2, with the second from 0 to 1/2, half of which is 1/4 of an update of length 2.

    >>> import torch
    >>> from fl_lightning.callbacks.server.craft import nearest_aligned
    >>> gram, shares = torch.tensor([[1.0, 0.0], [0.0, 4.0]]).double(), torch.tensor([0.5, 0.5]).double()
    >>> products, length = torch.tensor([3.0, 0.0]).double(), torch.tensor(3.0).double()
    >>> coefficients, kept = nearest_aligned(gram, shares, products, length)
    >>> coefficients.round(decimals=6).tolist(), round(kept, 6)
    ([-0.5, 0.25], 0.333333)

    Args:
        gram: (K, K) inner products of the updates.
        shares: (K,) ρ >= 0, of which the ratios count.
        products: (K,) inner products of the updates with the last step.
        length: length of the last step; 0 where there was none.

    Returns:
        (K,) coefficients of the updates, and the coefficient of the last step, in the direction.
    """
    lengths = gram.diagonal().sqrt()
    counts = lengths > 0
    if int(counts.sum()) < 2:
        return counts.to(gram), 0.0
    kept = 1 / float(length) if length > 0 else 0.0
    wanted = torch.where(counts, shares, 0.0)
    wanted = wanted / wanted.sum() if wanted.any() else counts / counts.sum()
    lacking = wanted - torch.where(counts, kept * products / lengths, 0.0)
    solved = torch.linalg.pinv(cosines(gram), rtol=EPSILON, hermitian=True) @ lacking
    return torch.where(counts, solved / lengths, 0.0), kept


class CRAFT(FederatedCallback):
    """Steps, in every layer, near the last direction and in agreement with every client (Wang et al., 2026).

    Wang et al., "CRAFT: Conflict-Resolved Aggregation for Federated Training": of all directions whose inner products
    with the clients' unit updates are the clients' shares, by default n_k's, the nearest to the last round's direction,
    scaled to length 1; in round 1, the shortest. The step is ``lr`` times this direction, whatever the updates'
    lengths. All parameters of a module are one layer; in the released code each matrix of an LSTM or of an attention is
    one, and a normalization belongs to the layer before it. The pseudo-inverse is that of the cosines (K, K), in place
    of the unit updates (K, P): directions in which the updates differ by rounding errors only do not count.

    Args:
        lr: > 0, length of the step in units of the direction; the released config has 0.1.

    Raises:
        ConfigurationError: ``lr`` is out of range.
    """

    def __init__(self, lr: float = 0.1) -> None:
        check_positive(lr=lr)
        self.lr = lr

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        sizes = [size for _, size in layers(orchestrator.client)]
        last = self.recall("direction", torch.zeros_like(cohort.anchor)).double()

        def by_layer(vector: Tensor) -> Tensor:
            return torch.stack([part.sum() for part in torch.split(vector, sizes)]).cpu()

        products = cohort.mixing @ torch.stack([by_layer(row.double() * last) for row in cohort.rows()])  # (K, L)
        lengths = by_layer(last.square()).sqrt()
        rows: list[Tensor] = []
        kept: list[float] = []
        for gram, layer_products, length in zip(grams(cohort, sizes), products.T, lengths, strict=True):
            row, factor = nearest_aligned(gram, cohort.weights, layer_products, length)
            rows.append(row)
            kept.append(factor)
        factors = torch.tensor(kept, dtype=last.dtype, device=last.device)
        factors = factors.repeat_interleave(torch.tensor(sizes, device=last.device))
        direction = combine(cohort, sizes, torch.stack(rows) @ cohort.mixing) + (factors * last).to(cohort.anchor)
        self.state["direction"] = direction
        return self.lr * direction
