"""Partition: the base class of all partitions."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fl_lightning.datamodules.partition.steps.parts import Ints, rows_of
from fl_lightning.errors import ConfigurationError


class Partition:
    """Deals examples to clients: every example to exactly one. A subclass implements :meth:`owners`."""

    by: ClassVar[Literal["labels", "groups", "domains", "nothing"]] = "labels"
    """Numbers that :meth:`split` takes: every example's class, its group (the writer, speaker or device), the pair of
    its domain and its class, or any."""

    column: str | None = None
    """Column of the data whose values are the groups; None for the groups that the data module or the user gives."""

    def split(self, labels: Tensor, num_clients: int, generator: np.random.Generator) -> Sequence[Tensor]:
        """Split the examples over the clients.

        Args:
            labels: (n,) integer class (or group: see :attr:`by`) of every example, or (n, 2) domain and class, n >= 1;
                numbers that do not occur are ignored.
            num_clients: N >= 1, the number of clients; with more clients than examples, some clients get nothing.
            generator: source of all randomness.

        Returns:
            N int64 tensors, each client's example indices in ascending order; some may be empty.

        Raises:
            ConfigurationError: there is no client or no example, or the partition cannot serve this many clients.
        """
        if num_clients < 1 or not len(labels):
            raise ConfigurationError(
                f"expected num_clients >= 1 and examples to deal, got num_clients={num_clients} and {len(labels)} "
                "examples: raise them"
            )
        owners = np.asarray(self.owners(labels.cpu().numpy(), num_clients, generator))
        if not np.issubdtype(owners.dtype, np.integer):
            raise ConfigurationError(
                f"expected {type(self).__name__}.owners to return whole numbers, the client of each example, got "
                f"{owners.dtype}: return integers"
            )
        if owners.shape != labels.shape[:1] or owners.min() < 0 or owners.max() >= num_clients:
            raise ConfigurationError(
                f"expected {type(self).__name__}.owners to return {len(labels)} clients from 0 to {num_clients - 1}, "
                f"got {len(owners)} from {owners.min()} to {owners.max()}: return one client per example"
            )
        return rows_of(owners, num_clients)

    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """Draw the client of every example.

        Args:
            labels: (n,) class (or group) of every example, or (n, 2) domain and class, n >= 1.
            num_clients: N >= 1, the number of clients.
            generator: source of all randomness.

        Returns:
            (n,) client of every example, from 0 to N - 1.
        """
        raise ConfigurationError(f"{type(self).__name__} must define owners(labels, num_clients, generator)")


def check_enough(num_clients: int, num_examples: int) -> None:
    """Refuse more clients than there are training examples to deal to them."""
    if num_clients > num_examples:
        raise ConfigurationError(
            f"num_clients must be at most {num_examples}, the number of training examples, got {num_clients}: lower it"
        )
