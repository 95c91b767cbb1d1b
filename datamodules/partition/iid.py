"""IID: no skew."""

import numpy as np

from fl_lightning.datamodules.partition.base import Ints, Partition


class IID(Partition):
    """A random split into equal parts: sizes differ by one at most."""

    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """The client of every example: see :class:`Partition`."""
        return generator.permutation(np.arange(len(labels)) % num_clients)
