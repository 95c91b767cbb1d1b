"""Stated: a partition that a list states."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.partition.base import Partition
from fl_lightning.datamodules.partition.steps.parts import Ints, rows_of
from fl_lightning.errors import ConfigurationError


class Stated(Partition):
    """Deals the examples as stated, example by example or client by client.

    >>> Stated(["rome", "oslo", "rome"]).parts
    [tensor([1]), tensor([0, 2])]
    >>> Stated([[0, 2], [1]]).parts
    [tensor([0, 2]), tensor([1])]

    Args:
        partition: (n,) the client of every example, as integers or strings, each distinct value one client, in sorted
            order; or one list of example indices for each client.

    Attributes:
        parts: each client's example indices.
        names: each client's value as text; None for a partition client by client.

    Raises:
        ConfigurationError: the partition is neither of the two; in :meth:`split`, the partition states other numbers of
            clients or examples.
    """

    by = "nothing"

    def __init__(self, partition: Sequence[Any]) -> None:
        self.count: int | None = None  # number of examples, if every example is stated
        self.names: list[str] | None
        try:
            if len(partition) and np.ndim(next(iter(partition))) == 1:
                self.parts = _client_by_client(partition)
                self.names = None
            else:
                values = np.asarray(partition)
                names, owners = _distinct(values)
                self.names = names
                self.parts = list(rows_of(owners, len(names)))
                self.count = len(values)
        except (TypeError, ValueError):
            raise ConfigurationError(
                "expected partition to be a Partition, one list of example indices for each client, or one client (an "
                f"integer or a string) for each example, got {' '.join(str(partition).split())[:60]}: convert it"
            ) from None

    @override
    def split(self, labels: Tensor, num_clients: int, generator: np.random.Generator) -> Sequence[Tensor]:
        if num_clients != len(self.parts):
            raise ConfigurationError(
                f"expected num_clients={len(self.parts)}, as the partition states, got {num_clients}: leave it out"
            )
        count = len(labels)
        used = torch.cat(self.parts)
        if self.count not in (None, count):
            raise ConfigurationError(
                f"expected partition to state the clients of {count} examples, got {self.count}: give one for each"
            )
        if len(used) and not 0 <= int(used.min()) <= int(used.max()) < count:
            raise ConfigurationError(
                f"expected partition to state indices from 0 to {count - 1}, got {int(used.min())} to {int(used.max())}"
            )
        return self.parts


def _client_by_client(partition: Sequence[Any]) -> list[Tensor]:
    parts = [np.asarray(part) for part in partition]
    if not all(part.ndim == 1 and (part.dtype.kind in "iu" or not len(part)) for part in parts):
        raise TypeError("not indices")
    return [torch.from_numpy(part.astype(np.int64)) for part in parts]


def _distinct(values: NDArray[Any]) -> tuple[list[str], Ints]:
    """Return the distinct values in sorted order, as texts, and the (n,) position of each value among them."""
    if values.dtype == object and all(isinstance(value, str) for value in values):  # a column of pandas
        values = values.astype(str)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iuSU":
        raise TypeError("not names")
    names, owners = np.unique(values, return_inverse=True)
    return [str(name) for name in names.tolist()], owners
