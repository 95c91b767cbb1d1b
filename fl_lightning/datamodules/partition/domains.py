"""DomainDirichlet: each domain is divided among clients of its own, with label skew."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from typing_extensions import override

from fl_lightning.datamodules.partition.base import Partition
from fl_lightning.datamodules.partition.dirichlet import Dirichlet
from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.datamodules.partition.steps.shares import number
from fl_lightning.errors import check_at_least


class DomainDirichlet(Partition):
    """Divides each domain (photo, sketch) among ``clients_per_domain`` clients, by :class:`Dirichlet` over its classes.

    The clients of the first domain, in sorted order, come first. They are named after their domain: "photo 1".

    Args:
        alpha: concentration, > 0; infinity (``.inf`` in YAML) divides each domain at random into equal parts.
        clients_per_domain: number of clients that share a domain, at least 1; the data module takes no ``num_clients``.
        column: for ``PartitionedData``, the column whose values are the domains.

    Raises:
        ConfigurationError: an argument is outside its range.
    """

    by = "domains"

    def __init__(self, alpha: float, clients_per_domain: int = 1, column: str | None = None) -> None:
        check_at_least(1, clients_per_domain=clients_per_domain)
        self.clients_per_domain = clients_per_domain
        self.column = column
        self._within = Dirichlet(alpha)

    def names(self, domains: Iterable[Any]) -> list[str]:
        """Name the clients, given the domain of each example."""
        numbers = range(1, self.clients_per_domain + 1)
        return [f"{domain} {number}" for domain in sorted(set(domains)) for number in numbers]

    @override
    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        domains, sizes = number(labels[:, 0])
        owners = np.empty(len(domains), dtype=np.int64)
        for domain in range(len(sizes)):
            rows = np.flatnonzero(domains == domain)
            within = self._within.owners(labels[rows, 1], self.clients_per_domain, generator)
            owners[rows] = domain * self.clients_per_domain + within
        return owners
