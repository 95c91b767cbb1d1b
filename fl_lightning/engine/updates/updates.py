"""Updates: the updates of a round's clients; every device keeps some of their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.engine.updates.columns import Columns
from fl_lightning.engine.updates.gram import without_rounding
from fl_lightning.engine.updates.store import arranged, will_need
from fl_lightning.errors import ConfigurationError

BLOCK = 1 << 18  # columns that are summed at a time
COLUMNS = 1 << 16  # columns that functions which are not linear in the updates process at a time
PIECE = 1 << 29  # bytes of updates in a file that are read at a time
TILE = (64, 1 << 11)  # rows and columns that fit into a CPU's cache in float64
SAME = 1e-9  # relative difference up to which two ratios of weights count as equal
TINY = 1e-6  # share of the largest coefficient; a smaller one is not taken as the unit of the others


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
        self.own, self.columns, self.order, self.shares = rows, columns, list(order), shares
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
            self.own, self.order = arranged(self.own, self.order), list(range(len(self)))
            return self.own
        gathered = self._new(len(self))
        for row, update in zip(gathered, self.rows(), strict=True):
            row.copy_(update)
        return gathered

    def rows(self) -> Iterator[Tensor]:
        """Yield the updates (P,) one by one; on several devices, each is gathered when its turn comes."""
        return (self.columns.joined(self.own[row]) for row in self.order)

    def combine(self, coefficients: Tensor) -> Tensor:
        """Return the (P,) sum of the updates, each times its coefficient (K,), in the clients' order.

        The coefficients are divided by the first one that is not tiny, and the sum is multiplied by it at the end. So
        the bits equal those of a sum of arriving updates, for which only the ratios of the coefficients were known.
        """
        if self.are_shares(coefficients):
            assert self.shares is not None
            weights, first = self.shares, first_above(self.shares, 0.0)
        else:
            weights, first = coefficients, first_above(coefficients, TINY * float(coefficients.abs().max()))
        if first is None:  # all are zero, or one is not finite, and so is the sum
            return float(coefficients.sum()) * self.columns.joined(torch.zeros_like(self.own[0]))
        return float(coefficients[first]) * self.columns.joined(self.add_to(None, weights / weights[first]))

    def add_to(self, total: Tensor | None, coefficients: Tensor) -> Tensor:
        """Add the updates, each times its coefficient (K,), to a sum over this device's columns (p,), or start one.

        The result is that of one addition after another, however many clients are added at a time.
        """
        total = torch.zeros_like(self.own[0]) if total is None else total
        numbers = [(row, number) for row, number in zip(self.order, coefficients.tolist(), strict=True) if number]
        for block, part in zip(torch.split(self.own, BLOCK, dim=1), torch.split(total, BLOCK), strict=True):
            if self._in_file:
                will_need(block)
            for row, number in numbers:
                part.add_(block[row], alpha=number)
        return total

    def are_shares(self, coefficients: Tensor) -> bool:
        """Tell whether coefficients (K,) are proportional to the shares."""
        if self.shares is None or not self.shares.any():
            return self.shares is not None and not coefficients.any()
        largest = self.shares.abs().argmax()
        expected = coefficients[largest] / self.shares[largest] * self.shares
        return bool((coefficients - expected).abs().max() <= SAME * expected.abs().max())

    def products(self, vector: Tensor) -> Tensor:
        """Inner products (K,) of the updates with a vector (P,), computed in the vector's dtype; float64 on the CPU."""
        local = vector[self.columns.own]

        def product(part: Tensor, segment: slice) -> Tensor:
            # A copy, because the bits of BLAS's product depend on where in memory a row starts.
            return part.to(vector.dtype, copy=True) @ local[segment]

        return self._by_row(product)

    @cached_property
    def norms(self) -> Tensor:
        """(K,) norms of the updates, float64 on the CPU."""
        return self._by_row(lambda part, segment: part.double().square().sum(-1)).sqrt()

    def _by_row(self, measure: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """Sum a measure of each segment of a row, or of all rows, over the segments: (K,) in float64 on the CPU."""

        def measured(segment: slice) -> Tensor:
            if self.own.device.type != "cpu":
                rows = self.own[:, segment]
                return measure(rows if self._in_order else rows[self.order], segment).double()
            values = [measure(self.own[row, segment], segment) for row in self.order]  # the bits of any number of rows
            return torch.stack(values).double() if values else start

        start = torch.zeros(len(self), dtype=torch.float64, device=self.own.device)
        return self.columns.total(map(measured, self.columns.segments(0, self.columns.size)), start).cpu()

    def gram(self, start: int = 0, stop: int | None = None) -> Tensor:
        """(K, K) inner products of the updates over the columns from ``start`` to ``stop``, float64 on the CPU."""
        size, device = len(self), self.own.device
        segments = self.columns.segments(start, self.columns.size if stop is None else stop)
        gram = torch.zeros(size, size, dtype=torch.float64, device=device)
        gram = self.columns.total(map(self._upper, segments), gram)
        gram = (gram.triu() + gram.triu(1).T).cpu()
        return without_rounding(gram, gram.diagonal().sqrt())

    def _upper(self, segment: slice) -> Tensor:
        """Compute the products over some columns; entries below the diagonal are undefined: the matrix is symmetric."""
        size, device = len(self), self.own.device
        rows, columns = TILE if device.type == "cpu" else (size, COLUMNS)
        gram = torch.zeros(size, size, dtype=torch.float64, device=device)
        wide = torch.empty(size, min(columns, segment.stop - segment.start), dtype=torch.float64, device=device)
        for part in self._pieces(self.own[:, segment]):
            for block in torch.split(part, columns, dim=1):
                now = wide[:, : block.shape[1]].copy_(block if self._in_order else block[self.order])
                for top in range(0, size, rows):
                    gram[top : top + rows, top:].addmm_(now[top : top + rows], now[top:].T)
        return gram

    @cached_property
    def _in_file(self) -> bool:
        return self.own.device.type == "cpu" and bool(self.own.is_shared())  # type: ignore[no-untyped-call]  # torch's

    @property
    def _in_order(self) -> bool:
        return self.order == list(range(len(self.own)))

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

        def reduced(block: Tensor) -> Tensor:
            block = block if self._in_order else block[self.order]
            return reduce(block if factors is None else factors @ block)

        parts = [self.own[:, each] for each in self.columns.segments(0, self.columns.size)]
        blocks = [block for part in parts for block in torch.split(part, COLUMNS, dim=1)]
        return self.columns.joined(torch.cat([reduced(block) for block in blocks] or [self.own.new_empty(0)]))


class Summed(Updates):
    """The sum of updates that were added when they arrived; the single updates are not kept.

    Args:
        columns: the columns of each device.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns, self._shares = columns, list[Tensor]()
        self._total: Tensor | None = None
        self._unit = 0.0  # the first share that is not zero
        self._norms: list[Tensor] = []

    def take_in(self, updates: Updates, shares: Tensor) -> None:
        """Add the updates of some more clients, in the clients' order, each times its share (k,)."""
        if not self._unit and (first := first_above(shares, 0.0)) is not None:
            self._unit = float(shares[first])
        self._total = updates.add_to(self._total, shares / (self._unit or 1.0))
        self._shares.append(shares)
        self.shares = torch.cat(self._shares)
        if "norms" in updates.__dict__:
            self._norms.append(updates.norms)

    @override
    def __len__(self) -> int:
        return sum(map(len, self._shares))

    @cached_property
    def norms(self) -> Tensor:
        """(K,) norms of the updates, if a rule has asked for them when the updates arrived."""
        return torch.cat(self._norms) if self._norms else self.gone

    @override
    def combine(self, coefficients: Tensor) -> Tensor:
        if self._total is None or self.shares is None or not self.are_shares(coefficients):
            raise ConfigurationError(
                f"a rule sets the weights {coefficients.tolist()}, but its stream_weights gave others when the updates "
                "arrived: correct stream_weights, or remove streams = True from the rule's class"
            )
        first = first_above(self.shares, 0.0)
        return (0.0 if first is None else float(coefficients[first])) * self.columns.joined(self._total)

    @property
    def gone(self) -> Any:
        """The rows, which are not kept: raise an error."""
        raise ConfigurationError(
            "a callback reads single updates, but updates are summed as they arrive, as all callbacks allow: remove "
            "streams = True from the callback's class"
        )

    own = order = gone  # all other methods read one of them


def first_above(weights: Tensor, least: float) -> int | None:
    """Return the position of the first weight (K,) whose size is above a number; None if there is none."""
    places = (weights.abs() > least).nonzero()
    return int(places[0]) if len(places) else None
