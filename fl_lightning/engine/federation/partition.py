"""Partition: the base class of all partitions, and the partitions that a list states."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fl_lightning.errors import ConfigurationError

Ints = NDArray[np.int64]


class Partition:
    """Deals examples to clients: every example to exactly one. A subclass implements :meth:`owners`."""

    by: ClassVar[Literal["labels", "groups", "nothing"]] = "labels"
    """Numbers that :meth:`split` takes: every example's class, its group (the writer, speaker or device), or any."""

    column: str | None = None
    """Column of the data whose values are the groups; None for the groups that the data module or the user gives."""

    def split(self, labels: Tensor, num_clients: int, generator: np.random.Generator) -> Sequence[Tensor]:
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
        return rows_of(owners, num_clients)

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


def check_enough(num_clients: int, num_examples: int) -> None:
    """Refuse more clients than there are training examples to deal to them."""
    if num_clients > num_examples:
        raise ConfigurationError(
            f"num_clients must be at most {num_examples}, the number of training examples, got {num_clients}: lower it"
        )


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
            return [self[each] for each in range(*client.indices(len(self)))]
        end = int(self._ends[client])
        return self.rows[end - int(self.sizes[client]) : end]

    def among(self, rows: Tensor) -> "Parts":
        """Return the same parts of other examples: index i becomes entry i of ``rows``."""
        return Parts(rows[self.rows], self.sizes)


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


def equal_owners(num_examples: int, num_clients: int, generator: np.random.Generator) -> Ints:
    """Draw the client of every example (n,) such that the clients' sizes differ by at most one."""
    return generator.permutation(np.arange(num_examples) % num_clients)


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
                self.parts, self.names = _client_by_client(partition), None
            else:
                values = np.asarray(partition)
                names, owners = _distinct(values)
                self.names, self.parts, self.count = names, list(rows_of(owners, len(names))), len(values)
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
        count, used = len(labels), torch.cat(self.parts)
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
