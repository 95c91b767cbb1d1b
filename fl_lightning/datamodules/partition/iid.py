"""IID: equal random parts, without skew."""

import numpy as np
from typing_extensions import override

from fl_lightning.datamodules.partition.base import Partition
from fl_lightning.datamodules.partition.steps.parts import Ints


class IID(Partition):
    """Splits the examples at random into equal parts: sizes differ by at most one."""

    by = "nothing"

    @override
    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        return generator.permutation(np.arange(len(labels)) % num_clients)
