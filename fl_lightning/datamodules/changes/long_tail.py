"""Functions that make a data set long-tailed."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_lightning.errors import ConfigurationError


def tail_sizes(largest: int, num_classes: int, ratio: float) -> NDArray[np.int64]:
    """Compute the (C,) sizes largest · ratio^(-c / (C - 1)) of the classes c = 0 … C - 1, to the nearest integers."""
    exponents = np.arange(num_classes) / max(num_classes - 1, 1)
    return np.rint(largest * ratio**-exponents).astype(np.int64)


def long_tail(labels: Tensor, ratio: float, generator: np.random.Generator) -> Tensor:
    """Choose rows so that class sizes fall geometrically from the first class to the last (FedLAW, Tables 6 and 7).

    The classes, in the order of their numbers, keep the sizes that :func:`tail_sizes` gives for the size of the largest
    class, or all their examples if they have fewer; the examples are drawn at random. So the first class of balanced
    data keeps ``ratio`` times as many examples as the last. The paper does not define its ρ: we assume that ρ is this
    ratio and that the sizes fall geometrically.

    Args:
        labels: (n,) integer class of every example; classes that do not occur are ignored.
        ratio: ρ, the ratio of the largest class to the smallest, in [1, inf).
        generator: source of all randomness.

    Returns:
        Ascending int64 indices of the examples to keep.

    Raises:
        ConfigurationError: ``ratio`` is outside its range.
    """
    if not 1 <= ratio < math.inf:  # also refuses nan
        raise ConfigurationError(
            f"expected ratio >= 1 of the largest class to the smallest, got {ratio}: use 1 to keep the data as they are"
        )
    _, classes, sizes = np.unique(labels.cpu().numpy(), return_inverse=True, return_counts=True)
    quota = tail_sizes(sizes.max(initial=0), len(sizes), ratio)
    order = generator.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # rank of each example within its class
    return torch.from_numpy(np.sort(order[rank < quota[classes[order]]]))
