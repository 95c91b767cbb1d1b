"""QuantitySkew: clients of different sizes, all with the same data distribution."""

import numpy as np
from typing_extensions import override

from fl_lightning.datamodules.partition.base import Partition
from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.datamodules.partition.steps.shares import check_alpha, dirichlet, whole


class QuantitySkew(Partition):
    """Draws client sizes n · Dir_N(alpha), without label skew: examples are dealt at random (Li et al., ICDE 2022).

    Sizes become whole numbers by rounding their cumulative sums to the nearest; a client may get no example.

    Args:
        alpha: concentration, > 0; the smaller ``alpha``, the more unequal the sizes; infinity for sizes that differ by
            at most one.

    Raises:
        ConfigurationError: ``alpha`` is outside its range.
    """

    by = "nothing"

    def __init__(self, alpha: float) -> None:
        check_alpha(alpha)
        self.alpha = alpha

    @override
    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        shares = dirichlet(np.full(num_clients, self.alpha), 1, generator)
        sizes = whole(shares, np.array([[len(labels)]]))[0]
        return generator.permutation(np.repeat(np.arange(num_clients), sizes))
