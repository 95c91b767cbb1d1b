"""gather_results: brings the values that clients send beside their updates from all devices to every device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.updates.cohort import ClientResult
from fl_lightning.engine.updates.columns import Columns

AT_ONCE = 4 << 20  # bytes of a device's results that travel together; more are slower to copy
Placed = list[tuple[ClientResult, int]]  # results, each with the slot that holds the client's update


def gather_results(
    columns: Columns, slots: Mapping[int, int], results: Sequence[ClientResult], buffers: Buffers, device: torch.device
) -> tuple[list[ClientResult], list[tuple[int, int]]]:
    """Gather the results of all devices, on every device.

    Args:
        columns: tells the number of devices, and which one this is.
        slots: the slot that holds the update of each client of this device.
        results: the results of this device's clients, without those that have failed.
        buffers: the global model's buffers; of the clients' own, only those that have changed travel.
        device: where the tensors are.

    Returns:
        The results of all clients, ordered by client, and for each the device and slot that hold its update.
    """
    own = [(result, slots[result.client]) for result in results]
    parts = {columns.rank: own}
    if columns.devices > 1:
        parts = _exchange(columns.devices, own, buffers, device)
    arrived: list[tuple[ClientResult, tuple[int, int]]] = []
    for rank, part in parts.items():
        arrived += [(result, (rank, slot)) for result, slot in part]
    arrived.sort(key=lambda pair: pair[0].client)
    return [result for result, _ in arrived], [place for _, place in arrived]


def _exchange(devices: int, own: Placed, buffers: Buffers, device: torch.device) -> dict[int, Placed]:
    """Gather the results of each device, some at a time."""
    none: Buffers = [None] * len(buffers)
    at_once = max(1, AT_ONCE // max(1, *(_size(result, buffers) for result, _ in own), 1))
    parts: dict[int, Placed] = {rank: [] for rank in range(devices)}
    unpack = partial(torch.as_tensor, device=device)
    start = 0
    is_complete = False
    while not is_complete:
        sent = [(_move(result, buffers, none, _pack), slot) for result, slot in own[start : start + at_once]]
        start += at_once
        # All devices exchange as often as the one with the most results needs, for each exchange waits for all.
        received: list[tuple[Placed, bool]] = [([], False)] * devices
        torch.distributed.all_gather_object(received, (sent, start >= len(own)))
        for rank, (part, _) in enumerate(received):
            parts[rank] += [(_move(result, none, buffers, unpack), slot) for result, slot in part]
        is_complete = all(is_last for _, is_last in received)
    return parts


def _size(result: ClientResult, known: Buffers) -> int:
    """Return the bytes of a result's tensors without the buffers that are known."""
    changed = [new for new, old in zip(result.buffers, known, strict=True) if new is not None and new is not old]
    tensors = (*changed, *result.vectors.values(), *result.stays.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _move(result: ClientResult, known: Buffers, by: Buffers, move: Callable[[Tensor], Any]) -> ClientResult:
    """Return a result with each tensor changed by a function, except known buffers, which others replace."""
    moved: list[Any] = []
    for buffer, old, other in zip(result.buffers, known, by, strict=True):
        if buffer is None or buffer is old:
            moved.append(other)
        else:
            moved.append(move(buffer))
    vectors = {name: move(vector) for name, vector in result.vectors.items()}
    stays = {name: move(tensor) for name, tensor in result.stays.items()}
    return replace(result, buffers=moved, vectors=vectors, stays=stays)


def _pack(tensor: Tensor) -> Any:
    """Return a tensor as an array where NumPy has its kind: an array is pickled several times as fast."""
    here = tensor.detach().cpu()
    return here.numpy() if here.layout is torch.strided and here.dtype is not torch.bfloat16 else here
