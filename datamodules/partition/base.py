"""Partition: the base class of all partitions."""

from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_lightning.errors import ConfigurationError

Ints = NDArray[np.int64]


class Partition:
    """Deals examples to clients: every example to exactly one. A subclass implements :meth:`owners`."""

    by: ClassVar[Literal["labels", "groups"]] = "labels"
    """Numbers that :meth:`split` takes: every example's class, or its group (the writer, speaker or device)."""

    def split(self, labels: Tensor, num_clients: int, generator: np.random.Generator) -> list[Tensor]:
        """Split the examples over the clients.

        Args:
            labels: (n,) integer class (or group: see :attr:`by`) of every example, n >= 1; numbers that do not occur
                are ignored.
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
        owners = self.owners(labels.cpu().numpy(), num_clients, generator)
        if owners.shape != labels.shape or owners.min() < 0 or owners.max() >= num_clients:
            raise ConfigurationError(
                f"expected {type(self).__name__}.owners to return {len(labels)} clients from 0 to {num_clients - 1}, "
                f"got {len(owners)} from {owners.min()} to {owners.max()}: return one client per example"
            )
        order = torch.from_numpy(np.argsort(owners, kind="stable"))
        return list(torch.split(order, np.bincount(owners, minlength=num_clients).tolist()))

    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """Draw the client of every example.

        Args:
            labels: (n,) class (or group) of every example, n >= 1.
            num_clients: N >= 1, the number of clients.
            generator: source of all randomness.

        Returns:
            (n,) client of every example, from 0 to N - 1.
        """
        raise ConfigurationError(f"{type(self).__name__} must define owners(labels, num_clients, generator)")
