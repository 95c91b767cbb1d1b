"""The batches of clients that train at once: read client by client and stacked, or gathered from memory in one go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
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
        if self.weights is not None:
            return self
        like = first_tensor(self.batch)
        weights = like.new_full(like.shape[:2], 1 / self.sizes[0], dtype=torch.float64)
        return replace(self, weights=weights)


def batches_by_step(sequences: Sequence[Iterator[Any]], steps: Sequence[int]) -> Iterator[list[Any]]:
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


def stack_batches(batches: Sequence[tuple[Any, int]]) -> list[Part]:
    """Stack the batches of a step, those of one shape together.

    Args:
        batches: for each client, a batch and its number of examples; batches are tensors, or lists or dicts of them.

    Raises:
        TypeError: a batch is something else.
    """
    parts = []
    for rows in _group_rows(_shape(batch) for batch, _ in batches).values():
        stack = map_tensors(_stack_tensors, *(batches[row][0] for row in rows))
        parts.append(Part(rows, stack, sizes=[batches[row][1] for row in rows]))
    return parts


def gather_steps(
    prepare: Callable[[Any], Any],
    clients: Sequence[Rows],
    steps: Sequence[int],
    width_of: Callable[[int], int],
    pads: bool,
) -> Iterator[list[Part]]:
    """Gather the batches of each step from memory, and bring them to the device; small steps several at a time.

    Args:
        prepare: brings a batch, whose examples may be several clients', through the hooks and to the device.
        clients: the rows of each client; all datasets :func:`are_alike`.
        steps: number of local steps of each client, in descending order.
        width_of: returns with how many batches a number of clients takes a step, at least as many.
        pads: whether batches of different sizes are filled up and evaluated together, and not one size at a time.
    """
    epoch_sizes = np.array([client.each for client in clients])
    row_counts = np.array([client.rows.numel() for client in clients])
    batch_size = clients[0].size
    step = np.arange(steps[0] if steps else 0)[:, None]
    epoch, number = np.divmod(step, -(-epoch_sizes // batch_size))
    counts = np.minimum(epoch_sizes - number * batch_size, batch_size)  # (steps, clients)
    starts = (epoch * epoch_sizes + number * batch_size) % row_counts  # those of clients that are done count nothing
    is_done = step >= np.array(steps)
    largest_of_step = np.where(is_done, 0, counts).max(1)
    smallest_of_step = np.where(is_done, batch_size, counts).min(1)
    fills_up = pads and bool((largest_of_step > smallest_of_step).any())
    full_size = min(batch_size, int(epoch_sizes.max()))
    for first, last, live in _spans(steps, clients[0].dataset, full_size):
        width = width_of(live)
        span_counts = counts[first:last, :width, None]
        span_starts = starts[first:last, :width, None]
        size = full_size if fills_up else int(span_counts.max())
        offsets = np.arange(size)
        places = span_starts + np.minimum(offsets, span_counts - 1)  # the last example once more fills a batch up
        batch = prepare(TrainingBatch(_gather_examples(clients[:width], places)))
        by_step = map_tensors(partial(torch.unflatten, dim=0, sizes=places.shape), batch)
        if fills_up:
            shares = (offsets < span_counts) / span_counts
            weights = torch.from_numpy(shares).to(first_tensor(batch).device)
        for place, sizes in enumerate(counts[first:last, :live].tolist()):
            step_batch = map_tensors(itemgetter(place), by_step)
            if fills_up:
                yield [Part(range(live), step_batch, sizes, weights[place])]
            else:
                yield _cut_by_size(step_batch, sizes)


def _spans(steps: Sequence[int], dataset: TensorDataset, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first step, the step after the last, and the number of clients of steps that are gathered in one go."""
    batch_bytes = size * sum(tensor[:1].nbytes for tensor in dataset.tensors)
    first = 0
    for live in range(len(steps), 0, -1):
        most = max(1, AHEAD // max(1, batch_bytes * live))
        while first < steps[live - 1]:
            last = min(first + most, steps[live - 1])
            yield first, last, live
            first = last


def _gather_examples(clients: Sequence[Rows], places: np.ndarray[Any, Any]) -> Iterator[Tensor]:
    """Yield the examples of some steps' batches in one tensor for each of the datasets' tensors.

    Args:
        clients: the rows of each client.
        places: (steps, clients, size) the places in a client's rows that each of its batches takes.
    """
    dataset = clients[0].dataset
    device = clients[0].rows.device
    if all(client.dataset is dataset for client in clients):
        offsets = np.cumsum([0, *(client.rows.numel() for client in clients[:-1])])
        all_rows = torch.cat([client.rows for client in clients])
        chosen = all_rows.take(torch.from_numpy(places + offsets[:, None]).flatten().to(device))
        for tensor in dataset.tensors:
            yield take(tensor, chosen)
        return
    steps, _, size = places.shape
    chosen_by_client = []
    for column, client in enumerate(clients):
        chosen_by_client.append(client.rows.take(torch.from_numpy(places[:, column]).flatten().to(device)))
    for number in range(len(dataset.tensors)):
        examples = []
        for client, rows in zip(clients, chosen_by_client, strict=True):
            chosen = take(client.dataset.tensors[number], rows)
            examples.append(chosen.reshape(steps, size, *chosen.shape[1:]))
        yield torch.stack(examples, dim=1).flatten(0, 2)


def _cut_by_size(batch: Any, sizes: list[int]) -> list[Part]:
    """Cut the batches of one step, filled up to one size, into parts of one size each.

    Args:
        batch: the batches of some clients, of which the first have ``sizes`` examples.
        sizes: number of examples in the batch of each client that is not done.
    """
    if sizes.count(sizes[0]) == len(sizes):
        return [Part(range(len(sizes)), map_tensors(lambda tensor: tensor[:, : sizes[0]], batch), sizes)]
    parts = []
    for size, rows in _group_rows(sizes).items():
        part_batch = map_tensors(partial(_select, rows=rows, size=size), batch)
        parts.append(Part(rows, part_batch, [size] * len(rows)))
    return parts


def _select(tensor: Tensor, rows: list[int], size: int) -> Tensor:
    """Return the first examples of some clients' batches."""
    return tensor[rows, :size]


def are_alike(one: TensorDataset, other: TensorDataset) -> bool:
    """Tell whether the examples of two datasets can be in one tensor."""
    return one is other or _kinds_of_tensors(one) == _kinds_of_tensors(other)


def _kinds_of_tensors(dataset: TensorDataset) -> list[Any]:
    return [(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in dataset.tensors]


def _group_rows(kinds: Iterable[Any]) -> dict[Any, list[int]]:
    """Return each kind with the rows that have it, given the kind of each row."""
    rows_of: dict[Any, list[int]] = defaultdict(list)
    for row, kind in enumerate(kinds):
        rows_of[kind].append(row)
    return rows_of


def _shape(batch: Any) -> Any:
    """Describe the shapes and types of a batch's tensors, so that equal descriptions can be stacked."""
    if isinstance(batch, Tensor):
        return batch.shape, batch.dtype
    if isinstance(batch, Mapping):
        return tuple((name, _shape(value)) for name, value in batch.items())
    if isinstance(batch, list | tuple):
        return tuple(map(_shape, batch))
    raise TypeError(f"several clients at once take batches of tensors, got {type(batch).__name__}")


def map_tensors(function: Callable[..., Tensor], first: Any, *others: Any) -> Any:
    """Apply a function to the tensors at the same place in batches of the same form."""
    if isinstance(first, Tensor):
        return function(first, *others)
    if isinstance(first, Mapping):
        parts = {}
        for name, tensors in first.items():
            parts[name] = map_tensors(function, tensors, *(batch[name] for batch in others))
        return parts
    return [map_tensors(function, *values) for values in zip(first, *others, strict=True)]


def _stack_tensors(*tensors: Tensor) -> Tensor:
    return torch.stack(tensors)


def sizes_of(parts: Sequence[Part]) -> Sequence[int]:
    """Return the number of examples in the batch of each client of a step, in the order of the rows."""
    if len(parts) == 1:
        return parts[0].sizes
    size_of: dict[int, int] = {}
    for part in parts:
        size_of.update(zip(part.rows, part.sizes, strict=True))
    return [size_of[row] for row in sorted(size_of)]


def first_tensor(batch: Any) -> Tensor:
    """Return one of the tensors of a batch."""
    while not isinstance(batch, Tensor):
        parts = batch.values() if isinstance(batch, Mapping) else batch
        batch = next(iter(parts))
    return batch
