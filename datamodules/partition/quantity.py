"""QuantitySkew: clients of different sizes, all with the same data distribution."""

import numpy as np
from typing_extensions import override

from fl_lightning.datamodules.partition.base import Ints, Partition
from fl_lightning.datamodules.partition.dealing import check_alpha, dirichlet, whole


class QuantitySkew(Partition):
    """Client sizes n · Dir_N(alpha), examples at random: sizes differ, labels are not skewed (Li et al., ICDE 2022).

    Sizes become whole numbers by rounding their cumulative sums to the nearest; a client may end up with nothing.

    Args:
        alpha: concentration, > 0; the smaller, the more unequal; infinity for sizes that are equal up to one.

    Raises:
        ConfigurationError: ``alpha`` is outside its range.
    """

    def __init__(self, alpha: float) -> None:
        check_alpha(alpha)
        self.alpha = alpha

    @override
    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        shares = dirichlet(np.full(num_clients, self.alpha), 1, generator)
        sizes = whole(shares, np.array([[len(labels)]]))[0]
        return generator.permutation(np.repeat(np.arange(num_clients), sizes))
