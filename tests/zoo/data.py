"""Data sets of many kinds. A function here makes the examples of one client, and each client's are its own."""

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


def points(draw: torch.Generator, size: int) -> Dataset[Any]:
    """Tensors in memory: x (4,) and a class, 0 to 2."""
    return TensorDataset(torch.randn(size, 4, generator=draw), torch.randint(3, (size,), generator=draw))


def curves(draw: torch.Generator, size: int) -> Dataset[Any]:
    """A target that is a number, on a scale of the client's own."""
    x = torch.randn(size, 4, generator=draw)
    return TensorDataset(x, torch.randn((), generator=draw) * x.sin().sum(1, keepdim=True))


def images(draw: torch.Generator, size: int) -> Dataset[Any]:
    """Images (1, 8, 8) and classes."""
    return TensorDataset(torch.randn(size, 1, 8, 8, generator=draw), torch.randint(3, (size,), generator=draw))


def unlabelled(draw: torch.Generator, size: int) -> Dataset[Any]:
    """A TensorDataset of one tensor: batches are lists with one entry."""
    return TensorDataset(torch.randn(size, 4, generator=draw))


def bare(draw: torch.Generator, size: int) -> list[Any]:
    """Tensors that are no part of a tuple."""
    return list(torch.randn(size, 4, generator=draw))


def small_bytes(draw: torch.Generator, size: int) -> Dataset[Any]:
    """Inputs of one byte each, and classes."""
    x = torch.randint(256, (size, 4), generator=draw, dtype=torch.uint8)
    return TensorDataset(x, torch.randint(3, (size,), generator=draw))


def tokens(draw: torch.Generator, size: int) -> Dataset[Any]:
    """Six words each of a vocabulary of 11, as whole numbers; word 0 pads."""
    return TensorDataset(torch.randint(11, (size, 6), generator=draw))


def labelled_tokens(draw: torch.Generator, size: int) -> Dataset[Any]:
    """Words and a class."""
    words = torch.randint(11, (size, 6), generator=draw)
    return TensorDataset(words, words.sum(1) % 3)


def series(draw: torch.Generator, size: int) -> Dataset[Any]:
    """Time series (5 steps, 2 values), and the next value of each."""
    x = torch.randn(size, 6, 2, generator=draw)
    return TensorDataset(x[:, :5], x[:, 5])


def graphs(draw: torch.Generator, size: int) -> Dataset[Any]:
    """Five nodes of four features, an adjacency matrix (5, 5) and a class for the whole graph."""
    edges = torch.rand(size, 5, 5, generator=draw).round()
    labels = torch.randint(3, (size,), generator=draw)
    return TensorDataset(torch.randn(size, 5, 4, generator=draw), (edges + edges.mT).clamp(max=1), labels)


def episodes(draw: torch.Generator, size: int) -> Dataset[Any]:
    """Few-shot episodes: a support set (3 classes, 2 shots, 4) and queries (3, 4), one for each class."""
    return TensorDataset(torch.randn(size, 3, 2, 4, generator=draw), torch.randn(size, 3, 4, generator=draw))


def tables(draw: torch.Generator, size: int) -> list[Any]:
    """Dicts, with a dict in them, of numbers, categories and two targets."""
    return [
        {
            "numbers": torch.randn(2, generator=draw),
            "categories": {"colour": int(torch.randint(3, (), generator=draw)), "shape": k % 2},
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
    return [
        Pair((torch.randn(4, generator=draw), torch.randn(4, generator=draw)), k % 3)  # type: ignore[arg-type]
        for k in range(size)
    ]


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
        return len(self.points)  # type: ignore[arg-type]

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
    words = [w for w, _ in examples]
    lengths, labels = torch.tensor([len(w) for w in words]), torch.tensor([y for _, y in examples])
    return Sentences(torch.nn.utils.rnn.pad_sequence(words, batch_first=True), lengths, labels)


def scenes(draw: torch.Generator, size: int) -> list[Any]:
    """Images of different sizes with a dict of boxes each."""
    sides = torch.randint(4, 9, (size,), generator=draw).tolist()
    return [
        (torch.randn(1, side, 8, generator=draw), {"boxes": torch.rand(k % 3, 4, generator=draw), "scene": k % 3})
        for k, side in enumerate(sides)
    ]


def listed(examples: list[Any]) -> tuple[list[Any], list[Any]]:
    """Make a list of images and a list of targets, as detectors take them."""
    inputs, targets = zip(*examples, strict=True)
    return list(inputs), list(targets)
