"""gather_clients: brings the values that clients send beside their updates from all devices to every device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.updates.cohort import ClientResult

Places = dict[int, tuple[int, int]]  # the device and slot that hold each client's update
AT_ONCE = 16 << 20  # bytes of a device's results that travel together
ALIGNED = 16  # bytes; the parts of a message begin at multiples of it


def gather_clients(
    trainer: Trainer, slots: Mapping[int, int], results: list[ClientResult], buffers: Buffers, device: torch.device
) -> tuple[list[ClientResult], list[tuple[int, int]]]:
    """Gather the results of all devices, on every device.

    Args:
        trainer: the Trainer, which knows the devices.
        slots: the slot that holds the update of each client of this device.
        results: the results of this device's clients, without those that have failed.
        buffers: the global model's buffers; of the clients' own, only those that have changed travel.
        device: where the tensors are.

    Returns:
        The results of all clients, ordered by client, and for each the device and slot that hold its update.
    """
    places = {client: (trainer.global_rank, slot) for client, slot in slots.items()}
    if trainer.world_size > 1:
        results, places = _gather_results(trainer.world_size, results, places, buffers, device)
    results = sorted(results, key=lambda result: result.client)
    return results, [places[result.client] for result in results]


def _gather_results(
    world_size: int, results: Sequence[ClientResult], places: Places, buffers: Buffers, device: torch.device
) -> tuple[list[ClientResult], Places]:
    """Gather the results of all devices: numbers and outlines of tensors as objects, the tensors as bytes."""
    own = [_buffers_replaced(result, buffers, by=None) for result in results]
    objects: list[tuple[list[ClientResult], Places]] = [([], {}) for _ in range(world_size)]
    torch.distributed.all_gather_object(objects, ([_with_tensors(result, _outline) for result in own], places))
    parts = [part for part, _ in objects]
    largest = max((_size([result]) for part in parts for result in part), default=0)
    most, each = max(map(len, parts)) if largest else 0, max(1, AT_ONCE // max(1, largest))
    for start in range(0, most, each):
        now = slice(start, start + each)
        sent = torch.zeros(max(_size(part[now]) for part in parts), dtype=torch.uint8, device=device)
        _pack(own[now], sent)
        received = [torch.empty_like(sent) for _ in parts]
        torch.distributed.all_gather(received, sent)
        for part, message in zip(parts, received, strict=True):
            take = _taking(message)
            part[now] = [_with_tensors(result, take) for result in part[now]]
    gathered = [_buffers_replaced(result, [None] * len(buffers), by=buffers) for part in parts for result in part]
    return gathered, {client: place for _, known in objects for client, place in known.items()}


def _buffers_replaced(result: ClientResult, old: Buffers, by: Buffers | None) -> ClientResult:
    """Return a result in which new buffers replace those that equal old ones; None replaces them without new ones."""
    new = by or [None] * len(old)
    return replace(result, buffers=[n if b is o else b for b, o, n in zip(result.buffers, old, new, strict=True)])


def _with_tensors(result: ClientResult, change: Callable[[Tensor], Tensor]) -> ClientResult:
    """Return a result with each of its tensors changed by a function."""
    return replace(
        result,
        buffers=[None if buffer is None else change(buffer) for buffer in result.buffers],
        vectors={name: change(vector) for name, vector in result.vectors.items()},
    )


def _outline(tensor: Tensor) -> Tensor:
    """Return a tensor's shape and dtype, or a sparse tensor itself, since sparse tensors are sent as objects."""
    return tensor.to("meta") if tensor.layout is torch.strided else tensor.cpu()


def _dense(result: ClientResult) -> list[Tensor]:
    tensors = (*result.buffers, *result.vectors.values())
    return [tensor for tensor in tensors if tensor is not None and tensor.layout is torch.strided]


def _room(tensor: Tensor) -> int:
    """Return the bytes of a tensor in a message."""
    return -(-tensor.nbytes // ALIGNED) * ALIGNED


def _size(results: Sequence[ClientResult]) -> int:
    return sum(_room(tensor) for result in results for tensor in _dense(result))


def _pack(results: Sequence[ClientResult], message: Tensor) -> None:
    """Write the tensors of results into a message, one after another."""
    start = 0
    for tensor in (each for result in results for each in _dense(result)):
        message[start : start + tensor.nbytes] = tensor.detach().reshape(-1).view(torch.uint8)
        start += _room(tensor)


def _taking(message: Tensor) -> Callable[[Tensor], Tensor]:
    """Make a function that takes the next tensor from a message, given its outline."""
    start = 0

    def take(outline: Tensor) -> Tensor:
        nonlocal start
        if not outline.is_meta:
            return outline
        taken = message[start : start + outline.nbytes].view(outline.dtype).view(outline.shape).clone()
        start += _room(outline)
        return taken

    return take
