"""Updates: the updates of a round's clients; every device keeps some of their columns."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import compress
from mmap import PAGESIZE
from typing import NoReturn

import torch
from torch import Tensor

from fl_lightning.engine.updates.columns import Columns
from fl_lightning.engine.updates.gram import without_rounding
from fl_lightning.errors import ConfigurationError

BLOCK = 1 << 18  # columns that are summed at a time
COLUMNS = 1 << 16  # columns that functions which are not linear in the updates process at a time
PIECE = 1 << 29  # bytes of updates in a file that are read at a time
TILE = (64, 1 << 11)  # rows and columns that fit into a CPU's cache in float64
SAME_RATIO = 1e-9  # relative difference up to which two ratios of weights count as equal
WILL_NEED = 3  # of madvise(2)
TINY_SHARE = 1e-6  # share of the largest coefficient; a smaller one is not taken as the unit of the others
LEAST_UNIT = 1e-20  # in units of a smaller one, as clipping gives a huge update, float32 would not hold the others


class Updates:
    """The updates (K, P) of a round's clients. On several devices, each keeps all rows of its share of the columns.

    Every method has the same result on one device and on several, bit for bit on CPUs; all devices must call a method.

    Args:
        rows: (R, p) rows, of this device's columns.
        columns: the columns of each device.
        order: the row of each of the K clients.
        shares: (K,) weights to which the weights of the sum are proportional in this run; None for any weights.
        new: function that makes a matrix (count, P) for a number of rows.
    """

    def __init__(
        self,
        rows: Tensor,
        columns: Columns,
        order: Sequence[int],
        shares: Tensor | None = None,
        new: Callable[[int], Tensor] | None = None,
    ) -> None:
        self.own = rows
        self.columns = columns
        self.order = list(order)
        self.shares = shares
        self._new = new or (lambda count: rows.new_empty(count, columns.size))

    @classmethod
    def of(cls, rows: Tensor) -> Updates:
        """Make updates of a matrix (K, P) that this device holds as a whole."""
        return Updates(rows, Columns(rows.shape[1]), range(len(rows)))

    def __len__(self) -> int:
        return len(self.order)

    def only(self, chosen: Sequence[bool]) -> Updates:
        """Leave out the updates of clients that are not chosen (K,)."""
        return Updates(self.own, self.columns, list(compress(self.order, chosen)), self.shares, self._new)

    @cached_property
    def whole(self) -> Tensor:
        """(K, P) all columns; on several devices, this property gathers them on every device."""
        if self.columns.devices == 1:
            self.own = arrange(self.own, self.order)
            self.order = list(range(len(self)))
            return self.own
        gathered = self._new(len(self))
        for row, update in zip(gathered, self.rows(), strict=True):
            row.copy_(update)
        return gathered

    def rows(self) -> Iterator[Tensor]:
        """Yield the updates (P,) one by one; on several devices, each is gathered when its turn comes."""
        return (self.columns.join(self.own[row]) for row in self.order)

    def combine(self, coefficients: Tensor) -> Tensor:
        """Return the (P,) sum of the updates, each times its coefficient (K,), in the clients' order.

        The coefficients are divided by the first one that is not tiny, and the sum is multiplied by it at the end. So
        the bits equal those of a sum of arriving updates, for which only the ratios of the coefficients were known.
        """
        if self.shares is not None and are_proportional(coefficients, self.shares):
            weights = self.shares
            least = 0.0
        else:
            weights = coefficients
            least = TINY_SHARE * max(coefficients.abs().tolist(), default=0.0)
        first = first_above(weights, least)
        if first is None:  # all are zero, or one is not finite, and so is the sum
            return float(coefficients.sum()) * self.columns.join(self.own.new_zeros(self.own.shape[1]))
        weight = float(weights[first])
        unit = unit_of(weight)
        total = self.columns.join(self.add_to(None, weights / unit))
        return float(coefficients[first]) * (unit / weight) * total

    def add_to(self, total: Tensor | None, coefficients: Tensor) -> Tensor:
        """Add the updates, each times its coefficient (K,), to a sum over this device's columns (p,), or start one.

        The result is that of one addition after another, however many clients are added at a time.
        """
        if total is None:
            total = torch.zeros_like(self.own[0])
        numbers = [(row, number) for row, number in zip(self.order, coefficients.tolist(), strict=True) if number]
        # Block by block, so that the sum stays in the cache; row by row, for a matrix product may add in any order.
        for block, part in zip(torch.split(self.own, BLOCK, dim=1), torch.split(total, BLOCK), strict=True):
            if self._in_file:
                will_need(block)
            for row, number in numbers:
                part.add_(block[row], alpha=number)
        return total

    def products(self, vector: Tensor) -> Tensor:
        """Inner products (K,) of the updates with a vector (P,), computed in the vector's dtype; float64 on the CPU."""
        local = vector[self.columns.own]

        def product(part: Tensor, segment: slice) -> Tensor:
            # A copy, because the bits of BLAS's product depend on where in memory a row starts.
            return part.to(vector.dtype, copy=True) @ local[segment]

        return self._by_row(product)

    def columns_at(self, indices: Tensor) -> Tensor:
        """Return some columns (K, b), given their indices (b,) on the CPU; float64, on the CPU, on every device."""
        own_indices = indices - self.columns.own.start
        start = torch.zeros(len(self), len(indices), dtype=torch.float64, device=self.own.device)

        def part(segment: slice) -> Tensor:
            """Fill in the columns that lie in a segment; the others are zero, so that the parts add up to all."""
            block = torch.zeros_like(start)
            is_here = (segment.start <= own_indices) & (own_indices < segment.stop)
            block[:, is_here] = self.own[:, own_indices[is_here].to(start.device)][self.order].to(start)
            return block

        return self.columns.total(map(part, self.columns.segments(0, self.columns.size)), start).cpu()

    @cached_property
    def norms(self) -> Tensor:
        """(K,) norms of the updates, float64 on the CPU."""
        return self._by_row(lambda part, segment: part.double().square().sum(-1)).sqrt()

    def _by_row(self, measure: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """Sum a measure of each segment of a row, or of all rows, over the segments: (K,) in float64 on the CPU."""
        start = torch.zeros(len(self), dtype=torch.float64, device=self.own.device)

        def measure_segment(segment: slice) -> Tensor:
            if self.own.device.type != "cpu":
                return measure(self._in_order(self.own[:, segment]), segment).double()
            values = [measure(self.own[row, segment], segment) for row in self.order]  # the bits of any number of rows
            return torch.stack(values).double() if values else start

        return self.columns.total(map(measure_segment, self.columns.segments(0, self.columns.size)), start).cpu()

    def gram(self, start: int = 0, stop: int | None = None) -> Tensor:
        """(K, K) inner products of the updates over the columns from ``start`` to ``stop``, float64 on the CPU."""
        size = len(self)
        segments = self.columns.segments(start, self.columns.size if stop is None else stop)
        gram = torch.zeros(size, size, dtype=torch.float64, device=self.own.device)
        gram = self.columns.total(map(self._upper, segments), gram)
        gram = (gram.triu() + gram.triu(1).T).cpu()
        return without_rounding(gram, gram.diagonal().sqrt())

    def _upper(self, segment: slice) -> Tensor:
        """Compute the products over some columns; entries below the diagonal are undefined: the matrix is symmetric."""
        size = len(self)
        device = self.own.device
        rows, columns = TILE if device.type == "cpu" else (size, COLUMNS)
        gram = torch.zeros(size, size, dtype=torch.float64, device=device)
        wide = torch.empty(size, min(columns, segment.stop - segment.start), dtype=torch.float64, device=device)
        for part in self._pieces(self.own[:, segment]):
            for block in torch.split(part, columns, dim=1):
                now = wide[:, : block.shape[1]].copy_(self._in_order(block))
                for top in range(0, size, rows):
                    gram[top : top + rows, top:].addmm_(now[top : top + rows], now[top:].T)
        return gram

    @cached_property
    def _in_file(self) -> bool:
        return self.own.device.type == "cpu" and bool(self.own.is_shared())  # type: ignore[no-untyped-call]  # torch's

    def _in_order(self, block: Tensor) -> Tensor:
        """Return the rows (K, B) of a block of columns (R, B) in the clients' order."""
        return block if self.order == list(range(len(block))) else block[self.order]

    def _pieces(self, columns: Tensor) -> Iterator[Tensor]:
        """Yield some columns; those in a file in pieces that fit into memory, each read once."""
        if not self._in_file:
            yield columns
            return
        for part in torch.split(columns, max(TILE[1], PIECE // max(1, columns[:, :1].nbytes)), dim=1):
            will_need(part)
            yield part.clone()

    def by_coordinate(self, reduce: Callable[[Tensor], Tensor], mixing: Tensor | None) -> Tensor:
        """Reduce the updates, mixed by (K, K) if given, to (P,) by a function from blocks (K, B) to (B,)."""
        factors = None if mixing is None else mixing.to(self.own)
        reduced: list[Tensor] = []
        for segment in self.columns.segments(0, self.columns.size):
            for block in torch.split(self.own[:, segment], COLUMNS, dim=1):
                rows = self._in_order(block)
                reduced.append(reduce(rows if factors is None else factors @ rows))
        if not reduced:  # this device has no columns
            reduced.append(self.own.new_empty(0))
        return self.columns.join(torch.cat(reduced))

    def __getattr__(self, name: str) -> NoReturn:
        """Say where the matrix is, for which a rule may have taken these updates."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"cohort.updates has no {name}: the updates as a matrix (K, P) are cohort.deltas")


class Summed:
    """The sum of updates that were added when they arrived; the single updates are gone.

    Args:
        columns: the columns of each device.

    Attributes:
        shares: (K,) weights to which the weights of the sum are proportional; None before the first client.
        norms: (K,) norms of the updates, float64; only if a rule has asked for them when the updates arrived.
    """

    norms: Tensor

    def __init__(self, columns: Columns) -> None:
        self.shares: Tensor | None = None
        self._columns = columns
        self._total = torch.zeros(0)
        self._unit = 0.0  # that of the first share that is not zero

    @classmethod
    def of(cls, columns: Columns, mean: Tensor, shares: Tensor) -> Summed:
        """Make the sum of updates of which only the mean (P,) is known, weighted by their shares (K,)."""
        summed = cls(columns)
        summed.shares = shares
        summed._total = mean[columns.own]
        summed._unit = float(shares.sum())
        return summed

    def take_in(self, updates: Updates, shares: Tensor) -> None:
        """Add the updates of some more clients, in the clients' order, each times its share (k,)."""
        first = first_above(shares, 0.0)
        begins = self.shares is None
        if not self._unit and first is not None:
            self._unit = unit_of(float(shares[first]))
        self._total = updates.add_to(None if begins else self._total, shares / (self._unit or 1.0))
        self.shares = shares if self.shares is None else torch.cat([self.shares, shares])
        if "norms" in updates.__dict__:
            self.norms = updates.norms if begins else torch.cat([self.norms, updates.norms])

    def __len__(self) -> int:
        return 0 if self.shares is None else len(self.shares)

    def combine(self, coefficients: Tensor) -> Tensor:
        """Return the (P,) sum of the updates, each times its coefficient (K,).

        Raises:
            ConfigurationError: the coefficients are not proportional to the shares.
        """
        if self.shares is None or not are_proportional(coefficients, self.shares):
            raise ConfigurationError(
                f"a rule sets the weights {coefficients.tolist()}, but its stream_weights gave others when the updates "
                "arrived: correct stream_weights, or remove streams = True from the rule's class"
            )
        first = first_above(self.shares, 0.0)
        scale = 0.0 if first is None else float(coefficients[first]) * (self._unit / float(self.shares[first]))
        return scale * self._columns.join(self._total)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what :class:`Updates` tells of single updates.

        Raises:
            ConfigurationError: the name is not Python's own or private.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        raise ConfigurationError(
            "a callback reads single updates, but updates are summed as they arrive, as all callbacks allow: remove "
            "streams = True from the callback's class"
        )


def are_proportional(coefficients: Tensor, shares: Tensor) -> bool:
    """Tell whether coefficients (K,) are proportional to shares (K,)."""
    if not shares.any():
        return not coefficients.any()
    largest = shares.abs().argmax()
    expected = coefficients[largest] / shares[largest] * shares
    return bool((coefficients - expected).abs().max() <= SAME_RATIO * expected.abs().max())


def unit_of(weight: float) -> float:
    """Return the unit in which the weights of a sum are counted, given the first of them: itself, if not tiny."""
    return math.copysign(max(abs(weight), LEAST_UNIT), weight)


def first_above(weights: Tensor, least: float) -> int | None:
    """Return the position of the first weight (K,) whose size is above a number; None if there is none."""
    places = (weights.abs() > least).nonzero()
    return int(places[0]) if len(places) else None


def will_need(part: Tensor) -> None:
    """Ask the system to read some columns of a mapped matrix now, and only these; do nothing where it cannot be asked.

    Without this call, the system reads megabytes around each row's piece, and drops them before they are used.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform.startswith("linux") else None
    if madvise is None:
        return
    for row in part:
        start = row.data_ptr() // PAGESIZE * PAGESIZE
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(row.data_ptr() + row.nbytes - start), WILL_NEED)


def arrange(rows: Tensor, order: Sequence[int]) -> Tensor:
    """Move row ``order[k]`` of a matrix to row k, for each k, in place with the memory of one row; return the top.

    >>> import torch
    >>> from fl_lightning.engine.updates.updates import arrange
    >>> arrange(torch.tensor([[0], [1], [2], [3]]), [3, 0, 1]).tolist()
    [[3], [0], [1]]
    """
    taken = set(order)
    sources = [*order, *(row for row in range(len(rows)) if row not in taken)]
    waiting = {place: row for place, row in enumerate(sources) if place != row}
    while waiting:  # each circle of rows in turn
        first, row = waiting.popitem()
        first_row = rows[first].clone()
        place = first
        while row != first:
            rows[place] = rows[row]
            place = row
            row = waiting.pop(row)
        rows[place] = first_row
    return rows[: len(order)]
