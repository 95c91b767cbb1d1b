"""The batches of clients that train at once: read client by client and stacked, or gathered from memory in one go."""

from __future__ import annotations

import itertools
from collections import defaultdict
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
        rows: the clients' n rows in the stack.
        batch: the clients' batches, stacked along a new first dimension n.
        size: number of examples in each batch.
    """

    rows: Sequence[int]
    batch: Any
    size: int


def repeated(epochs: Callable[[int], Iterable[Any]], count: int) -> Iterator[Any]:
    """Return the first ``count`` batches of the epochs 0, 1, …

    Raises:
        RuntimeError: an epoch has no batch.
    """

    def without_end() -> Iterator[Any]:
        for epoch in itertools.count():
            is_empty = True
            for batch in epochs(epoch):
                is_empty = False
                yield batch
            if is_empty:
                raise RuntimeError("an epoch has no batch")

    return itertools.islice(without_end(), count)


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
    found = _by_kind(_shape(batch) for batch, _ in batches).values()
    return [Part(rows, _mapped(_stack, *(batches[row][0] for row in rows)), batches[rows[0]][1]) for rows in found]


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
    steps = [_by_kind(rows.numel() for _, rows in batches) for batches in taken]
    pairs = zip(taken, steps, strict=True)
    chosen = [batches[row] for batches, found in pairs for row in itertools.chain(*found.values())]
    batch = prepare(TrainingBatch(_taken(chosen)))
    start = 0
    for found in steps:
        parts = []
        for size, rows in found.items():
            parts.append(Part(rows, _cut(batch, start, len(rows), size), size))
            start += len(rows) * size
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


def _by_kind(kinds: Iterable[Any]) -> dict[Any, list[int]]:
    """Return each kind with the places that have it."""
    found: dict[Any, list[int]] = defaultdict(list)
    for place, kind in enumerate(kinds):
        found[kind].append(place)
    return found


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


def _stack(*tensors: Tensor) -> Tensor:
    return torch.stack(tensors)


def _cut(batch: Any, start: int, count: int, size: int) -> Any:
    """Cut batches of ``size`` examples of ``count`` clients out of a larger one, along a new first dimension."""
    stop = start + count * size
    return _mapped(lambda tensor: tensor[start:stop].view(count, size, *tensor.shape[1:]), batch)
