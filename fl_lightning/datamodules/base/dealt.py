"""Dealt: one training set, dealt to clients."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from fl_lightning.datamodules.partition.steps.parts import Parts
from fl_lightning.engine.federation.batches import Collate, Examples, SeededBatches, in_memory, take
from fl_lightning.errors import ConfigurationError
from fl_lightning.seeding import numpy_generator


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A training set, dealt to clients.

    Attributes:
        examples: the training set.
        parts: the rows of the training set on which each client trains, if it trains at all.
        classes: (n,) int64 class of each example; None if the classes are unknown.
        num_classes: C, the number of classes, if some of them may not occur; 0 for one more than the largest class.
        names: the name of each client; None for clients without names.
        num_new: number of clients that never train: the last ones.
        kept: the examples on which clients evaluate, and the rows that are each client's own; None if there are none.
        evaluation: the test set; empty if there is none.
        domains: (m,) domain of each example of the test set; None for data without domains.
        validation: the examples on which validation evaluates in place of the test set; None for the test set.
        proxy: the server's proxy set, and the (p,) class of each of its examples; None if there is none.
    """

    examples: Examples
    parts: Parts
    classes: Tensor | None
    num_classes: int = 0
    names: Sequence[str] | None = None
    kept: tuple[Examples, Parts] | None = None
    num_new: int = 0
    evaluation: Examples = field(default_factory=lambda: TensorDataset(torch.empty(0)))
    domains: NDArray[Any] | None = None
    validation: Examples | None = None
    proxy: tuple[Examples, Tensor] | None = None

    @property
    def trained(self) -> Parts:
        """The rows of the clients that train."""
        return self.parts.first(len(self.parts) - self.num_new)

    def dataset(self, client: int) -> Subset[Any]:
        """Return the examples on which a client trains."""
        examples: Any = self.examples
        rows: Any = self.parts[client]
        tensors = in_memory(examples, rows[:0]) is not None  # other data sets may want indices that are integers
        return Subset(examples, rows if tensors else rows.tolist())

    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of examples per client and class; None if the classes are unknown."""
        if self.classes is None:
            return None
        clients, classes = len(self.parts), self.num_classes or int(self.classes.max()) + 1
        owners = torch.arange(clients).repeat_interleave(self.parts.sizes)
        cells = owners * classes + self.classes[self.parts.rows]
        return torch.bincount(cells, minlength=clients * classes).view(clients, classes)

    def kept_batches(self, client: int, batch_size: int, collate: Collate | None = None) -> Iterator[Any]:
        """Yield a client's own examples for its evaluation, in batches, in order.

        Args:
            client: the client.
            batch_size: number of examples in a batch.
            collate: function that makes a batch from a list of examples; None to stack them.
        """
        if self.kept is not None:
            examples, parts = self.kept
            yield from batches_of(examples, parts[client], batch_size, collate)


def batches_of(examples: Examples, rows: Tensor, batch_size: int, collate: Collate | None = None) -> Iterator[Any]:
    """Yield the examples of some rows (m,) in batches, in order; see :meth:`Dealt.kept_batches`."""
    if not len(rows):
        return
    located = in_memory(examples, rows) if collate is None else None
    if located is not None:
        dataset, rows = located
        for part in torch.split(rows, batch_size):
            yield [take(tensor, part) for tensor in dataset.tensors]
        return
    batches = SeededBatches(examples, rows, batch_size, 0, collate or default_collate)
    for number in range(len(batches)):
        yield batches[number]


def check_held_out(share: float) -> None:
    """Refuse a share of each client's examples that is not in [0, 1)."""
    if not 0 <= share < 1:  # also refuses nan
        raise ConfigurationError(f"held_out must be in [0, 1), the share of each client's examples, got {share}")


def count_new(clients: int, share: float) -> int:
    """Return how many of N clients never train: a share of them, rounded; if it is not 0, at least one, and not all.

    Raises:
        ConfigurationError: a single client cannot be both new and trained.
    """
    if share and clients < 2:
        raise ConfigurationError(
            f"new_clients needs two clients or more, some to train and some to come new, got {clients}: leave "
            "new_clients out"
        )
    return min(max(1, round(share * clients)), clients - 1) if share else 0


def new_last(clients: int, share: float, seed: int) -> list[int]:
    """Draw the clients that never train; return all N clients, these behind the others, each in ascending order.

    The draw depends on N, the share and the seed alone.

    >>> new_last(5, 0.4, seed=0)
    [1, 3, 4, 0, 2]
    """
    if not share:
        return list(range(clients))
    draws = numpy_generator(seed, "new clients").choice(clients, count_new(clients, share), replace=False)
    new = set(draws.tolist())
    return sorted(range(clients), key=lambda client: (client in new, client))


def hold_out(parts: Parts, share: float, seed: int, purpose: str = "held out") -> tuple[Parts, Parts]:
    """Draw the examples that each client keeps back from training; at least one example stays in training.

    Args:
        parts: each client's examples.
        share: share to keep back, in [0, 1), rounded to whole examples.
        seed: the run's seed.
        purpose: name of the draw; draws of different names are independent.

    Returns:
        The examples of each client that stay in training, and those that it keeps back.
    """
    kept = torch.zeros(len(parts.rows), dtype=torch.bool)
    counts = torch.zeros_like(parts.sizes)
    starts = (parts.sizes.cumsum(0) - parts.sizes).tolist()
    for client, (start, size) in enumerate(zip(starts, parts.sizes.tolist(), strict=True)) if share else ():
        if (count := min(round(share * size), size - 1)) > 0:
            draws = numpy_generator(seed, purpose, client).choice(size, count, replace=False)
            kept[torch.from_numpy(start + np.asarray(draws))] = True
            counts[client] = count
    return Parts(parts.rows[~kept], parts.sizes - counts), Parts(parts.rows[kept], counts)


def mask_of(count: int, *rows: Tensor) -> Tensor:
    """Return the bool mask (``count``,) of some rows (m,)."""
    mask = torch.zeros(count, dtype=torch.bool)
    for part in rows:
        mask[part] = True
    return mask


def in_order(examples: Examples, batch_size: int, collate: Collate | None = None) -> DataLoader[Any]:
    """Return a loader of examples, in order; of tensors in memory, each batch is a slice."""
    dataset: Any = examples
    # Without a generator of its own, the DataLoader would draw a seed for its workers from the global one, and training
    # would depend on how often the model is evaluated.
    own = torch.Generator()
    if collate is not None or not isinstance(dataset, TensorDataset):
        return DataLoader(dataset, batch_size, collate_fn=collate, generator=own)
    batches = [slice(i, i + batch_size) for i in range(0, len(dataset), batch_size)]
    return DataLoader(dataset, batch_size=None, sampler=batches, generator=own)


def in_batches(examples: Examples, batches: Iterable[Tensor], collate: Collate | None = None) -> DataLoader[Any]:
    """Return a loader of the examples in batches of rows (B,)."""
    dataset: Any = examples
    if collate is None and isinstance(dataset, TensorDataset):
        return DataLoader(dataset, batch_size=None, sampler=batches)
    return DataLoader(_Gathered(dataset, collate or default_collate), batch_size=None, sampler=batches)


class _Gathered(Dataset[Any]):
    """Batches of examples by their rows (B,)."""

    def __init__(self, examples: Examples, collate: Collate) -> None:
        self.examples, self.collate = examples, collate

    def __getitem__(self, rows: Tensor) -> Any:
        return self.collate([self.examples[row] for row in rows.tolist()])
