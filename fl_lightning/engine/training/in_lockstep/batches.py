"""The batches of clients that train at once: read client by client and stacked, or gathered from memory in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.engine.federation.batches import TrainingBatch, take

Rows = tuple[TensorDataset, Tensor]  # a batch: its examples' row numbers (B,) in a dataset in memory
AHEAD = 1 << 20  # bytes of examples in memory that are gathered in one go; a step's are never divided


@dataclass(frozen=True)
class Part:
    """The clients of a step whose batches have one shape.

    Attributes:
        rows: (n,) the clients' rows in the stack, or None for all rows.
        batch: the clients' batches, stacked along a new first dimension n.
        size: number of examples in each batch.
    """

    rows: Tensor | None
    batch: Any
    size: int


def repeated(epochs: Callable[[int], Iterable[Any]], count: int) -> Iterator[Any]:
    """Yield the first ``count`` batches of the epochs 0, 1, …

    Raises:
        RuntimeError: an epoch has no batch.
    """
    epoch = done = 0
    while done < count:
        before = done
        for batch in epochs(epoch):
            yield batch
            done += 1
            if done == count:
                return
        epoch += 1
        if done == before:
            raise RuntimeError("an epoch has no batch")


def in_lockstep(sequences: Sequence[Iterator[Any]], steps: Sequence[int]) -> Iterator[list[Any]]:
    """Yield the batches of each step, one for each client that is not done yet.

    Args:
        sequences: each client's batches.
        steps: number of local steps of each client, in descending order.
    """
    width = len(steps)
    for step in range(steps[0] if steps else 0):
        while steps[width - 1] <= step:
            width -= 1
        yield [next(sequence) for sequence in sequences[:width]]


def stacked(batches: Sequence[tuple[Any, int]]) -> list[Part]:
    """Stack the batches of a step, those of one shape together.

    Args:
        batches: for each client, a batch and its number of examples; batches are tensors, or lists or dicts of them.

    Raises:
        TypeError: a batch is something else.
    """
    return [
        Part(rows, _stack([batches[place][0] for place in places]), batches[places[0]][1])
        for _, places, rows in _by_kind([_shape(batch) for batch, _ in batches])
    ]


def gathered(prepare: Callable[[Any], Any], taken: Iterable[Sequence[Rows]]) -> Iterator[list[Part]]:
    """Gather the batches of each step from memory, and bring them to the device; small steps several at a time.

    Args:
        prepare: brings a batch, whose examples may be several clients', through the hooks and to the device.
        taken: for each step, the rows of each client's batch; all datasets are :func:`alike`.

    Yields:
        The parts of each step, the clients with batches of one size together.
    """
    waiting: list[Sequence[Rows]] = []
    size = 0
    for batches in taken:
        waiting.append(batches)
        each = sum(tensor[:1].nbytes for tensor in batches[0][0].tensors)
        size += each * sum(rows.numel() for _, rows in batches)
        if size >= AHEAD:
            yield from _gather(prepare, waiting)
            waiting, size = [], 0
    if waiting:
        yield from _gather(prepare, waiting)


def _gather(prepare: Callable[[Any], Any], taken: Sequence[Sequence[Rows]]) -> Iterator[list[Part]]:
    steps = [list(_by_kind([rows.numel() for _, rows in batches])) for batches in taken]
    kinds = zip(taken, steps, strict=True)
    chosen = [batches[place] for batches, found in kinds for _, places, _ in found for place in places]
    batch = prepare(TrainingBatch(_taken(chosen)))
    start = 0
    for found in steps:
        parts = []
        for size, places, rows in found:
            parts.append(Part(rows, _cut(batch, start, len(places), size), size))
            start += len(places) * size
        yield parts


def _taken(chosen: Sequence[Rows]) -> Iterator[Tensor]:
    """Yield the examples of all batches in one tensor for each of the datasets' tensors."""
    first = chosen[0][0]
    if all(dataset is first for dataset, _ in chosen):
        rows = torch.cat([rows for _, rows in chosen])
        yield from (take(tensor, rows) for tensor in first.tensors)
    else:
        for number in range(len(first.tensors)):
            yield torch.cat([take(dataset.tensors[number], rows) for dataset, rows in chosen])


def alike(one: TensorDataset, other: TensorDataset) -> bool:
    """Tell whether the examples of two datasets can be in one tensor."""
    return one is other or _kinds(one) == _kinds(other)


def _kinds(dataset: TensorDataset) -> list[Any]:
    return [(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in dataset.tensors]


def _by_kind(kinds: Sequence[Any]) -> Iterator[tuple[Any, Sequence[int], Tensor | None]]:
    """Yield each kind, the places that it has, and these as a tensor; None in place of the tensor of all places."""
    first = kinds[0]
    if all(kind == first for kind in kinds):
        yield first, range(len(kinds)), None
        return
    found: dict[Any, list[int]] = {}
    for place, kind in enumerate(kinds):
        found.setdefault(kind, []).append(place)
    for kind, places in found.items():
        yield kind, places, torch.tensor(places)


def _shape(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.shape, batch.dtype
    if isinstance(batch, Mapping):
        return tuple((name, _shape(value)) for name, value in batch.items())
    if isinstance(batch, list | tuple):
        return tuple(map(_shape, batch))
    raise TypeError(f"several clients at once take batches of tensors, got {type(batch).__name__}")


def _mapped(function: Callable[..., Tensor], first: Any, *others: Any) -> Any:
    """Apply a function to the tensors at the same place in batches of the same form."""
    if isinstance(first, Tensor):
        return function(first, *others)
    if isinstance(first, Mapping):
        return {name: _mapped(function, *(batch[name] for batch in (first, *others))) for name in first}
    return [_mapped(function, *values) for values in zip(first, *others, strict=True)]


def _stack(batches: Sequence[Any]) -> Any:
    return _mapped(lambda *tensors: torch.stack(tensors), *batches)


def _cut(batch: Any, start: int, count: int, size: int) -> Any:
    """Cut batches of ``size`` examples of ``count`` clients out of a larger one, along a new first dimension."""
    stop = start + count * size
    return _mapped(lambda tensor: tensor[start:stop].view(count, size, *tensor.shape[1:]), batch)
