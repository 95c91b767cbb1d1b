"""Data sets of many kinds. A maker here makes the examples of one client, and each client's are its own."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import FederatedDataModule

SIZES = (8, 6, 4, 10)  # in batches of 4: 2, 2, 1 and 3 of them
UNEVEN = (5, 9, 4, 1)  # a last batch of one on three of the clients
VALIDATION = 99  # in place of a client's id

Make = Callable[[torch.Generator, int], Any]
Collate = Callable[[list[Any]], Any]


def on(**row: Any) -> Callable[[type], type]:
    """Let the table train a module with these arguments of its row, such as other data."""

    def mark(kind: type) -> type:
        kind.row = row  # type: ignore[attr-defined]
        return kind

    return mark


class ZooData(FederatedDataModule):
    """Four clients, or one, with examples of some kind, and a validation set of the same kind.

    Args:
        make: makes a client's examples from a generator and their number: a Dataset, or a list of examples.
        collate: makes a batch of a list of examples; None for what a DataLoader makes.
        sizes: n_k of each client.
        clients: the clients of every round, in the order in which one device trains them; all of them by default, in
            order of id.
        settings: of FederatedDataModule.
    """

    def __init__(
        self,
        make: Make,
        collate: Collate | None = None,
        sizes: Sequence[int] = SIZES,
        clients: Sequence[int] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(batch_size=4, **settings)
        self.make, self.collate, self.num_clients, self.lengths = make, collate, len(sizes), sizes
        self.clients = range(len(sizes)) if clients is None else clients

    def cohort(self, round: int) -> list[int]:
        return list(self.clients)

    def client_dataset(self, client: int) -> Dataset[Any]:
        return self.make(torch.Generator().manual_seed(client), self.lengths[client])

    def client_num_samples(self, client: int) -> int:
        return self.lengths[client]

    def client_batches(self, client: int, order: torch.Generator) -> Iterator[Any]:
        if self.collate is None:
            return super().client_batches(client, order)
        dataset: Any = self.client_dataset(client)
        parts = torch.randperm(len(dataset), generator=order).split(self.batch_size)
        return iter([self.collate([dataset[i] for i in part]) for part in parts])

    def val_dataloader(self) -> DataLoader[Any]:
        examples = self.make(torch.Generator().manual_seed(VALIDATION), 6)
        return DataLoader(examples, batch_size=4, collate_fn=self.collate, generator=torch.Generator())


def tensors(*columns: Make) -> Make:
    """Make a TensorDataset of these columns."""
    return lambda draw, size: TensorDataset(*(column(draw, size) for column in columns))


def normal(*shape: int) -> Make:
    return lambda draw, size: torch.randn(size, *shape, generator=draw)


def whole(below: int, *shape: int, dtype: torch.dtype = torch.int64) -> Make:
    return lambda draw, size: torch.randint(below, (size, *shape), generator=draw, dtype=dtype)


def bare(draw: torch.Generator, size: int) -> list[Any]:
    """Tensors that are no part of a tuple."""
    return list(normal(4)(draw, size))


points = tensors(normal(4), whole(3))  # x and a class
images = tensors(normal(1, 8, 8), whole(3))
unlabelled = tensors(normal(4))  # a TensorDataset of one tensor: batches are lists with one entry
small_bytes = tensors(whole(256, 4, dtype=torch.uint8), whole(3))
tokens = tensors(whole(11, 6), whole(3))  # six words of a vocabulary of 11, of which word 0 pads, and a class
series = tensors(normal(5, 2), normal(2))  # time series, and the next value of each


def tables(draw: torch.Generator, size: int) -> list[Any]:
    """Dicts, with a dict in them, of numbers, categories and two targets."""
    return [
        {
            "numbers": torch.randn(2, generator=draw),
            "categories": {"colour": k % 3, "shape": k % 2},
            "targets": {"class": k % 3, "price": float(torch.randn((), generator=draw))},
        }
        for k in range(size)
    ]


class Pair(NamedTuple):
    """An example with names."""

    views: tuple[Tensor, Tensor]
    label: int


def pairs(draw: torch.Generator, size: int) -> list[Any]:
    """Named tuples of a tuple and a number."""
    views = torch.randn(size, 2, 4, generator=draw)
    return [Pair((one, other), k % 3) for k, (one, other) in enumerate(views)]


def texts(draw: torch.Generator, size: int) -> list[Any]:
    """Strings with a class; the module cuts the words apart."""
    words = ["once", "upon", "a", "time", "there", "was"]
    picks = torch.randint(len(words), (size, 3), generator=draw).tolist()
    return [(" ".join(words[i] for i in pick), sum(pick) % 3) for pick in picks]


class Augmented(Dataset[Any]):
    """No tensors in memory, and each example is changed by the global generators of torch, NumPy and Python."""

    def __init__(self, draw: torch.Generator, size: int) -> None:
        self.points = points(draw, size)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.points[index]
        return (x + torch.randn(4)) * random.uniform(0.5, 2) + torch.tensor(np.random.rand(4), dtype=x.dtype), y


@dataclass
class Sentences:
    """A batch of sentences of different lengths: a class of its own, with a method."""

    words: Tensor
    lengths: Tensor
    labels: Tensor

    @property
    def mask(self) -> Tensor:
        """(B, L) where there are words."""
        return torch.arange(self.words.shape[1]) < self.lengths[:, None]


def sentences(draw: torch.Generator, size: int) -> list[Any]:
    """Sentences of 1 to 5 words."""
    lengths = torch.randint(1, 6, (size,), generator=draw).tolist()
    return [(torch.randint(1, 11, (length,), generator=draw), length % 3) for length in lengths]


def padded(examples: list[Any]) -> Sentences:
    """Pad sentences to the longest of their batch."""
    words, labels = zip(*examples, strict=True)
    lengths = torch.tensor([len(each) for each in words])
    return Sentences(torch.nn.utils.rnn.pad_sequence(words, batch_first=True), lengths, torch.tensor(labels))


def scenes(draw: torch.Generator, size: int) -> list[Any]:
    """Images of different sizes with a dict of boxes each."""
    sides = torch.randint(4, 9, (size,), generator=draw).tolist()
    return [
        (torch.randn(1, side, 8, generator=draw), {"boxes": torch.rand(k % 3, 4, generator=draw), "scene": k % 3})
        for k, side in enumerate(sides)
    ]


def listed(examples: list[Any]) -> tuple[Any, ...]:
    """Make a tuple of images and a tuple of targets, as detectors take them."""
    return tuple(zip(*examples, strict=True))
