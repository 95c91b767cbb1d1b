"""IID: equal random parts, without skew."""

import numpy as np
from typing_extensions import override

from fl_lightning.engine.federation.partition import Ints, Partition, equal_owners


class IID(Partition):
    """Splits the examples at random into equal parts: sizes differ by at most one."""

    by = "nothing"

    @override
    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        return equal_owners(len(labels), num_clients, generator)
