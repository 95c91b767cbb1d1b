"""The batches of clients that train at once: read client by client and stacked, or gathered from memory in one go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.engine.federation.batches import Rows, TrainingBatch, take

AHEAD = 1 << 22  # bytes of examples in memory that are gathered in one go; a step's are never divided


@dataclass(frozen=True)
class Part:
    """The clients of a step whose batches are evaluated together.

    Attributes:
        rows: the clients' n rows in the stack.
        batch: the clients' batches, stacked along a new first dimension; the batches after the first n count nothing.
        sizes: number of examples in each client's batch.
        weights: (n, B) the weight of each example in its client's loss, 0 for those that only fill the batch up; None
            where all batches have one size.
    """

    rows: Sequence[int]
    batch: Any
    sizes: Sequence[int]
    weights: Tensor | None = None

    def by_example(self) -> Part:
        """Return the same part with weights, for a loss that is evaluated example by example."""
        like = first_tensor(self.batch)
        weights = like.new_full(like.shape[:2], 1 / self.sizes[0], dtype=torch.float64)
        return self if self.weights is not None else replace(self, weights=weights)


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
    return [
        Part(rows, mapped(_stack, *(batches[row][0] for row in rows)), [batches[row][1] for row in rows])
        for rows in found
    ]


def gathered(
    prepare: Callable[[Any], Any], clients: Sequence[Rows], steps: Sequence[int], form: Callable[[int], int], pads: bool
) -> Iterator[list[Part]]:
    """Gather the batches of each step from memory, and bring them to the device; small steps several at a time.

    Args:
        prepare: brings a batch, whose examples may be several clients', through the hooks and to the device.
        clients: the rows of each client; all datasets are :func:`alike`.
        steps: number of local steps of each client, in descending order.
        form: returns with how many batches a number of clients takes a step, at least as many.
        pads: whether batches of different sizes are filled up and evaluated together, and not one size at a time.
    """
    each, taken = np.array([(client.each, client.rows.numel()) for client in clients]).T
    size = clients[0].size
    step = np.arange(steps[0] if steps else 0)[:, None]
    epoch, number = np.divmod(step, -(-each // size))
    counts = np.minimum(each - number * size, size)  # (steps, clients)
    starts = (epoch * each + number * size) % taken  # those of clients that are done count nothing
    ends = step >= np.array(steps)
    uneven = pads and bool((np.where(ends, 0, counts).max(1) > np.where(ends, size, counts).min(1)).any())
    filled = min(size, int(each.max()))
    for first, last, live in _runs_of(steps, clients[0].dataset, filled):
        width = form(live)
        several = slice(first, last), slice(width)
        largest = filled if uneven else int(counts[several].max())
        places = starts[several][..., None] + np.minimum(np.arange(largest), counts[several][..., None] - 1)
        batch = prepare(TrainingBatch(_taken(clients[:width], places)))
        whole = mapped(lambda tensor: tensor.unflatten(0, places.shape), batch)  # noqa: B023
        if uneven:
            shares = (np.arange(largest) < counts[several][..., None]) / counts[several][..., None]
            weights = torch.from_numpy(shares).to(first_tensor(batch).device)
        for place, sizes in enumerate(counts[first:last, :live].tolist()):
            step_batch = mapped(lambda tensor: tensor[place], whole)  # noqa: B023
            yield [Part(range(live), step_batch, sizes, weights[place])] if uneven else _parts(step_batch, sizes)


def _runs_of(steps: Sequence[int], dataset: TensorDataset, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first step, the step after the last, and the number of clients of steps that are gathered in one go."""
    each, first = size * sum(tensor[:1].nbytes for tensor in dataset.tensors), 0
    for live in range(len(steps), 0, -1):
        several = max(1, AHEAD // max(1, each * live))
        while first < steps[live - 1]:
            last = min(first + several, steps[live - 1])
            yield first, last, live
            first = last


def _taken(clients: Sequence[Rows], places: np.ndarray[Any, Any]) -> Iterator[Tensor]:
    """Yield the examples of some steps' batches in one tensor for each of the datasets' tensors.

    Args:
        clients: the rows of each client.
        places: (steps, clients, size) the places in a client's rows that each of its batches takes.
    """
    first, device = clients[0].dataset, clients[0].rows.device
    if all(client.dataset is first for client in clients):
        offsets = np.cumsum([0, *(client.rows.numel() for client in clients[:-1])])
        rows = torch.cat([client.rows for client in clients])
        chosen = rows.take(torch.from_numpy(places + offsets[:, None]).flatten().to(device))
        yield from (take(tensor, chosen) for tensor in first.tensors)
    else:
        own = [
            client.rows.take(torch.from_numpy(places[:, row]).flatten().to(device))
            for row, client in enumerate(clients)
        ]
        for number in range(len(first.tensors)):
            parts = [take(client.dataset.tensors[number], rows) for client, rows in zip(clients, own, strict=True)]
            yield torch.stack([part.view(*places[:, 0].shape, *part.shape[1:]) for part in parts], dim=1).flatten(0, 2)


def _parts(batch: Any, sizes: list[int]) -> list[Part]:
    """Cut the batches of one step, filled up to one size, into parts of one size each.

    Args:
        batch: the batches of some clients, of which the first have ``sizes`` examples.
        sizes: number of examples in the batch of each client that is not done.
    """
    if sizes.count(sizes[0]) == len(sizes):
        return [Part(range(len(sizes)), mapped(lambda tensor: tensor[:, : sizes[0]], batch), sizes)]
    kinds = _by_kind(sizes).items()
    return [Part(r, mapped(lambda tensor: tensor[r, :n], batch), [n] * len(r)) for n, r in kinds]  # noqa: B023


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


def mapped(function: Callable[..., Tensor], first: Any, *others: Any) -> Any:
    """Apply a function to the tensors at the same place in batches of the same form."""
    if isinstance(first, Tensor):
        return function(first, *others)
    if isinstance(first, Mapping):
        return {name: mapped(function, *(batch[name] for batch in (first, *others))) for name in first}
    return [mapped(function, *values) for values in zip(first, *others, strict=True)]


def _stack(*tensors: Tensor) -> Tensor:
    return torch.stack(tensors)


def sizes_of(parts: Sequence[Part]) -> Sequence[int]:
    """Return the number of examples in the batch of each client of a step, in the order of the rows."""
    if len(parts) == 1:
        return parts[0].sizes
    found = dict(pair for part in parts for pair in zip(part.rows, part.sizes, strict=True))
    return [found[row] for row in sorted(found)]


def first_tensor(batch: Any) -> Tensor:
    """Return one of the tensors of a batch."""
    while not isinstance(batch, Tensor):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return batch
