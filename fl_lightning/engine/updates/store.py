"""Store: the memory of the updates of the clients that a device trains, or a file that is mapped."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from tempfile import NamedTemporaryFile

import psutil
import torch
import torch.distributed
from torch import Tensor

from fl_lightning.engine.module.params import is_finite
from fl_lightning.engine.updates.columns import Columns
from fl_lightning.engine.updates.updates import Updates
from fl_lightning.errors import ConfigurationError

AT_ONCE = 16 << 20  # bytes of a device's updates that travel together
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Store:
    """The memory of the updates of the clients that a device trains: a slot for each, cut into the devices' shares.

    At the end, every device sends each other device that device's share of the slots, and stores the shares that it
    receives in their place.

    Args:
        like: (P,) a vector, whose dtype and device the updates have.
        rank: this device's number, from 0.
        devices: number of devices.
        slots: the largest number of clients that this device trains before they are handed on.
        limit: bytes above which the memory is a file.
        folder: where the file is.

    Attributes:
        columns: the columns of each device.
        slots: the slot of each client whose update has arrived.
    """

    def __init__(self, like: Tensor, rank: int, devices: int, slots: int, limit: int, folder: Path) -> None:
        self.columns = Columns(len(like), rank, devices)
        self.slots: dict[int, int] = {}
        new = partial(new_rows, limit=limit, folder=folder)
        self._slots = new(slots * devices, like[: self.columns.width]).view(slots, devices, self.columns.width)
        self._new = partial(new, like=like)

    def __len__(self) -> int:
        return len(self._slots)

    def clear(self) -> None:
        """Make room for other clients."""
        self.slots = {}

    def put(self, clients: Sequence[int], models: Tensor, anchor: Tensor | None) -> Tensor:
        """Store the updates of k clients: their models less the global model.

        Args:
            clients: the k clients.
            models: (k, P) the clients' models.
            anchor: (P,) the global model; None if the models are updates already.

        Returns:
            (k,) signs on the device: 0 for a finite update; nan for one that is not finite, or whose sum is huge, which
            :meth:`is_finite` tells apart.
        """
        first = len(self.slots)
        self.slots |= {client: first + place for place, client in enumerate(clients)}
        parts = self._parts(first, len(clients))
        for part, share in zip(parts, self.columns.shares, strict=True):
            if anchor is None:
                part.copy_(models[:, share])
            else:
                torch.sub(models[:, share], anchor[share], out=part)
        return reduce(operator.add, [part.sum(1) * 0 for part in parts])  # a sum is the fastest single pass

    def is_finite(self, client: int) -> bool:
        """Tell whether all entries of a client's update are finite."""
        return all(is_finite(part) for part in self._parts(self.slots[client], 1) if part.numel())

    def _parts(self, first: int, count: int) -> list[Tensor]:
        """Return each device's share (count, p) of some slots."""
        slots = self._slots[first : first + count]
        return [slots[:, device, : share.stop - share.start] for device, share in enumerate(self.columns.shares)]

    def hand_out(self, order: Sequence[tuple[int, int]]) -> Updates:
        """Exchange the updates with the other devices.

        Args:
            order: device and slot of each client, in the order of the updates.
        """
        devices = self.columns.devices
        if devices > 1:
            self._exchange(1 + max((slot for _, slot in order), default=-1))
        rows = self._slots.view(-1, self.columns.width)[:, : self.columns.own.stop - self.columns.own.start]
        return Updates(rows, self.columns, [slot * devices + device for device, slot in order], new=self._new)

    def _exchange(self, count: int) -> None:
        """Put into each of the first slots, for each device, this device's share of that device's slot."""
        at_once = max(1, AT_ONCE // max(1, self._slots[:1].nbytes))
        for slots in torch.split(self._slots[:count], at_once):
            sent = slots.transpose(0, 1).contiguous()
            received = torch.empty_like(sent)
            torch.distributed.all_to_all_single(received, sent)
            slots.copy_(received.transpose(0, 1))


def new_rows(count: int, like: Tensor, limit: int, folder: Path) -> Tensor:
    """Make a matrix (count, P) for vectors like the given one (P,); its entries are undefined.

    On a CPU, a matrix of more than ``limit`` bytes is mapped from a file, which the system reads and writes as it needs
    the memory. The file has no name, so that it is gone with the process, however that ends.

    Args:
        count: number of rows.
        like: (P,) a vector, whose dtype and device the matrix gets.
        limit: the largest number of bytes in memory.
        folder: the folder of the file.

    Raises:
        ConfigurationError: the disk has no room.
    """
    size = count * like.nbytes
    if like.device.type != "cpu" or size <= limit:
        return like.new_empty(count, len(like))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix="updates-") as file:
            _reserve(file.fileno(), size)
            rows = torch.from_file(file.name, shared=True, size=count * len(like), dtype=like.dtype)
    except OSError as error:
        raise ConfigurationError(
            f"a round's updates ({count} clients × {len(like):,} parameters, {size / UNITS['GiB']:.1f} GiB) are above "
            f"the limit in memory of {limit / UNITS['GiB']:.1f} GiB and do not fit on disk in {folder}: "
            f"{error.strerror}; raise model.cohort_memory, or draw fewer clients"
        ) from error
    return rows.view(count, len(like))


def _reserve(file: int, size: int) -> None:
    """Give a file its size at once: writing to a mapped file on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


def bytes_in(size: str) -> int:
    """Read a size, in bytes.

    >>> from fl_lightning.engine.updates.store import bytes_in
    >>> bytes_in("1.5GiB")
    1610612736

    Raises:
        ConfigurationError: the text is not a positive number and a unit.
    """
    match = re.fullmatch(r"(\d+\.?\d*) ?(KiB|MiB|GiB|TiB)", size)
    if not match:
        raise ConfigurationError(f"cohort_memory must be a size such as 4GiB, in {', '.join(UNITS)}, got {size!r}")
    number, unit = match.groups()
    return int(float(number) * UNITS[unit])


def usual_limit(processes: int) -> int:
    """Return half of the machine's memory in bytes, divided by the run's number of processes on the machine."""
    return int(psutil.virtual_memory().total) // (2 * processes)
