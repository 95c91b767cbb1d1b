"""Receiver: takes in the updates of the clients that a device trains, and hands each device its columns of all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed
from torch import Tensor

from fl_lightning.engine.module.params import finite_sign, is_finite
from fl_lightning.engine.updates.columns import Columns
from fl_lightning.engine.updates.store import new_rows
from fl_lightning.engine.updates.updates import Updates

AT_ONCE = 16 << 20  # bytes of a device's updates that travel together


class Receiver:
    """The memory of the updates that a device's clients send: a slot for each client, cut into the devices' shares.

    At the end, every device sends each other device that device's share of the slots, and stores the shares that it
    receives in their place.

    Args:
        like: (P,) a vector, whose dtype and device the updates have.
        rank: this device's number, from 0.
        devices: number of devices.
        slots: the largest number of clients that this device trains before they are handed on.
        limit: bytes above which the memory is a file.
        folder: where the file is.
    """

    def __init__(self, like: Tensor, rank: int, devices: int, slots: int, limit: int, folder: Path) -> None:
        self.columns = Columns(len(like), rank, devices)
        new = partial(new_rows, limit=limit, folder=folder)
        self._slots = new(slots * devices, like[: self.columns.width]).view(slots, devices, self.columns.width)
        self._shares = [self.columns.share(device) for device in range(devices)]
        self._new = partial(new, like=like)
        self.slots: dict[int, int] = {}  # the slot of each client whose update has arrived

    def __len__(self) -> int:
        return len(self._slots)

    def clear(self) -> None:
        """Make room for other clients."""
        self.slots = {}

    def put(self, client: int, model: Tensor, anchor: Tensor) -> Tensor:
        """Store a client's update, its model (P,) less the global model (P,); return a scalar, nan if not finite."""
        parts = [
            torch.sub(model[share], anchor[share], out=place[0])
            for place, share in zip(self._places([client]), self._shares, strict=True)
        ]
        signs = [finite_sign(part) for part in parts]
        return signs[0] if len(signs) == 1 else torch.stack(signs).sum()

    def put_group(self, clients: Sequence[int], models: Tensor, anchor: Tensor) -> Tensor:
        """Store the updates of clients, given their models (k, P); return which of the k updates are finite."""
        places = self._places(clients)
        for place, share in zip(places, self._shares, strict=True):
            torch.sub(models[:, share], anchor[share], out=place)
        return torch.stack([place.abs().amax(1).isfinite() for place in places if place.shape[1]]).all(0)

    def _places(self, clients: Sequence[int]) -> list[Tensor]:
        """Give clients the next slots, and return their part of each device's share, (k, p) each."""
        first = len(self.slots)
        self.slots |= {client: first + place for place, client in enumerate(clients)}
        taken = self._slots[first : first + len(clients)]
        return [taken[:, device, : share.stop - share.start] for device, share in enumerate(self._shares)]

    def is_finite(self, client: int) -> bool:
        """Tell whether all entries of a client's update are finite."""
        slot = self._slots[self.slots[client]]
        parts = [slot[device, : share.stop - share.start] for device, share in enumerate(self._shares)]
        return all(is_finite(part) for part in parts if len(part))

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
        each = max(1, AT_ONCE // max(1, self._slots[:1].nbytes))
        for slots in torch.split(self._slots[:count], each):
            sent = slots.transpose(0, 1).contiguous()
            received = torch.empty_like(sent)
            torch.distributed.all_to_all_single(received, sent)
            slots.copy_(received.transpose(0, 1))
