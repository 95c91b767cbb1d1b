"""Natural: the groups of the data, such as writers, become the clients."""

import numpy as np
from typing_extensions import override

from fl_lightning.datamodules.partition.base import Partition
from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.datamodules.partition.steps.shares import number
from fl_lightning.errors import ConfigurationError


class Natural(Partition):
    """Keeps groups (writers, speakers, devices) whole: every group goes to one client, in random order.

    The clients' numbers of groups differ by at most one; their numbers of examples depend on the groups. With as many
    clients as groups, every client is one group. With a ``column`` and without ``num_clients``, each value of the
    column is a client, in sorted order, and names the client.

    Args:
        column: for ``PartitionedData`` and ``Table``, the column whose values are the groups.

    Raises:
        ConfigurationError: in :meth:`split`, there are fewer groups than clients.
    """

    by = "groups"

    def __init__(self, column: str | None = None) -> None:
        self.column = column

    @override
    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        groups, sizes = number(labels)
        if len(sizes) < num_clients:
            raise ConfigurationError(
                f"expected at least as many groups as clients, got {len(sizes)} groups for num_clients={num_clients}: "
                "lower num_clients"
            )
        return generator.permutation(np.arange(len(sizes)) % num_clients)[groups]
