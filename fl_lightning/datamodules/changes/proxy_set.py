"""The server's proxy set: the draw of its examples, and the order of its batches."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError


def draw_proxy(labels: Tensor, sizes: Sequence[int], generator: np.random.Generator) -> Tensor:
    """Draw a given number of examples of each class.

    Args:
        labels: (n,) class of every example that may be drawn.
        sizes: (C,) number of examples of each class; all zero for no proxy set.
        generator: source of all randomness.

    Returns:
        (n,) bool, True for the drawn examples.

    Raises:
        ConfigurationError: a class would have no example left.
    """
    drawn = torch.zeros(len(labels), dtype=torch.bool)
    for label, size in enumerate(sizes) if any(sizes) else ():
        examples = (labels == label).nonzero().flatten()
        if size >= len(examples):
            raise ConfigurationError(
                f"expected proxy_per_class below {len(examples)}, the number of images of class {label}, so that some "
                f"are left, got {size}: lower proxy_per_class"
            )
        drawn[examples[torch.from_numpy(generator.choice(len(examples), size, replace=False))]] = True
    return drawn


class Shuffled:
    """Yields batches of row numbers, in every pass in a new order from torch's global generator."""

    def __init__(self, labels: Tensor, batch_size: int) -> None:
        self.labels, self.batch_size = labels, batch_size

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.split(self.rows(), self.batch_size))

    def rows(self) -> Tensor:
        """Draw the (n,) row numbers of one pass."""
        return torch.randperm(len(self.labels))


class Balanced(Shuffled):
    """Yields batches of row numbers drawn with replacement: every class that occurs has the same probability."""

    def rows(self) -> Tensor:
        """Draw the (n,) row numbers of one pass."""
        return torch.multinomial(1 / self.labels.bincount()[self.labels], len(self.labels), replacement=True)
