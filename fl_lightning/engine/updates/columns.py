"""Columns: the columns of the updates that each device keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil

import torch
import torch.distributed
from torch import Tensor

SEGMENTS = 24  # largest number of segments; 1, 2, 3, 4, 6, 8 or 12 devices can keep equally many
UNIT = 1 << 13  # a segment's number of columns is a multiple of it


@dataclass(frozen=True)
class Columns:
    """The columns of the updates (K, P), cut into segments; each device keeps all rows of some neighbouring segments.

    The segments do not depend on the number of devices. Sums over columns are taken segment by segment, so that every
    number of devices gives the same bits.

    Attributes:
        size: P.
        rank: this device's number, from 0.
        devices: number of devices.

    Example:
        >>> from fl_lightning.engine.updates.columns import Columns
        >>> columns = Columns(20_000, rank=1, devices=2)
        >>> columns.bounds, columns.own
        ([0, 8192, 16384, 20000], slice(8192, 20000, None))
    """

    size: int
    rank: int = 0
    devices: int = 1

    @cached_property
    def bounds(self) -> list[int]:
        """The columns at which segments begin, and P."""
        width: int = UNIT * max(1, ceil(self.size / (SEGMENTS * UNIT)))
        return [*range(0, max(1, self.size), width), self.size]

    @cached_property
    def _firsts(self) -> list[int]:
        """The first segment of each device, and the number of segments."""
        return [device * (len(self.bounds) - 1) // self.devices for device in range(self.devices + 1)]

    @cached_property
    def shares(self) -> list[slice]:
        """The columns of each device."""
        return [slice(self.bounds[first], self.bounds[last]) for first, last in pairwise(self._firsts)]

    @property
    def own(self) -> slice:
        """The columns of this device."""
        return self.shares[self.rank]

    @cached_property
    def width(self) -> int:
        """The largest number of columns that a device keeps."""
        width: int = max(share.stop - share.start for share in self.shares)
        return width

    def segments(self, start: int, stop: int) -> list[slice]:
        """Cut the columns from ``start`` to ``stop`` at the bounds of this device's segments.

        Returns:
            For each segment of this device, its part of the columns, perhaps empty, counted from the device's first.
        """
        first, last = self._firsts[self.rank : self.rank + 2]
        parts = pairwise(self.bounds[first : last + 1])
        cut = [(max(low, start), min(high, stop)) for low, high in parts]
        return [slice(low - self.own.start, max(low, high) - self.own.start) for low, high in cut]

    def total(self, parts: Iterable[Tensor], start: Tensor) -> Tensor:
        """Add one tensor for each segment of this device to ``start``, those of all devices in the segments' order."""
        if self.devices > 1:
            counts = [last - first for first, last in pairwise(self._firsts)]
            parts = _gather(torch.stack([start, *parts])[1:], counts)  # a device without a segment has only start
        for part in parts:
            start += part  # in one order on any number of devices, because rounding depends on the order
        return start

    def join(self, own: Tensor) -> Tensor:
        """Join the devices' columns (p,) of a vector to the vector (P,)."""
        if self.devices == 1:
            return own
        return _gather(own, [share.stop - share.start for share in self.shares])


def _gather(own: Tensor, counts: list[int]) -> Tensor:
    """Join the rows that the devices hold, given how many each holds."""
    sent = own.new_zeros(max(counts), *own.shape[1:])  # all devices must send tensors of one shape
    sent[: len(own)] = own
    received = [torch.empty_like(sent) for _ in counts]
    torch.distributed.all_gather(received, sent)
    return torch.cat([part[:count] for part, count in zip(received, counts, strict=True)])
