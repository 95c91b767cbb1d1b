"""Parts: each client's examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


class Parts(Sequence[Tensor]):
    """Each client's example indices, as parts of one tensor: a million clients are two tensors, not a million.

    >>> parts = Parts(torch.tensor([5, 7, 6]), sizes=torch.tensor([2, 0, 1]))
    >>> list(parts)
    [tensor([5, 7]), tensor([], dtype=torch.int64), tensor([6])]

    Args:
        rows: (n,) int64 example indices, those of client 0 first.
        sizes: (N,) int64 number of each client's examples; they sum to n.
    """

    def __init__(self, rows: Tensor, sizes: Tensor) -> None:
        self.rows, self.sizes = rows, sizes
        self._ends = sizes.cumsum(0)

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> "Parts":
        """Make parts of a list with a tensor for each client."""
        if isinstance(parts, Parts):
            return parts
        rows = torch.cat(list(parts)) if len(parts) else torch.empty(0, dtype=torch.int64)
        return cls(rows, torch.tensor([len(part) for part in parts], dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return [self[number] for number in range(*client.indices(len(self)))]
        end = int(self._ends[client])
        return self.rows[end - int(self.sizes[client]) : end]

    def in_order(self, clients: Sequence[int]) -> "Parts":
        """Return the parts of some clients, in their order."""
        return Parts.of([self[client] for client in clients])

    def first(self, count: int) -> "Parts":
        """Return the parts of the first clients."""
        sizes = self.sizes[:count]
        return Parts(self.rows[: int(sizes.sum())], sizes)

    def among(self, rows: Tensor) -> "Parts":
        """Return the same parts of other examples: index i becomes entry i of ``rows``."""
        return Parts(rows[self.rows], self.sizes)

    def where(self, mask: Tensor) -> "Parts":
        """Return those of each client's examples for which a mask (n,) is true."""
        kept = mask[self.rows]
        clients = torch.arange(len(self)).repeat_interleave(self.sizes)[kept]
        return Parts(self.rows[kept], torch.bincount(clients, minlength=len(self)))

    def renumbered(self, mask: Tensor) -> "Parts":
        """Return the same parts of fewer examples: those for which a mask is true, which holds for all of the parts."""
        return Parts((mask.cumsum(0) - 1)[self.rows], self.sizes)


def rows_of(owners: Ints, num_clients: int) -> Parts:
    """Turn the client of every example (n,) into each client's int64 example indices, in ascending order."""
    order = torch.from_numpy(stable_order(owners))
    return Parts(order, torch.from_numpy(np.bincount(owners, minlength=num_clients)))


def stable_order(numbers: Ints) -> Ints:
    """Return the positions (n,) that sort whole numbers >= 0; equal numbers keep their order.

    Sorts by the lowest 16 bits, then by those above: NumPy sorts 16 bits by counting, which takes a third of the time
    of ``np.argsort(numbers, kind="stable")``.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")  # the cast keeps the lowest 16 bits
    for shift in range(16, int(numbers.max(initial=0)).bit_length(), 16):
        digits = (numbers >> shift).astype(np.uint16)[order]
        order = order[np.argsort(digits, kind="stable")]
    return order
