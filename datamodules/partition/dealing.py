"""What the partitions have in common: shares, whole numbers of examples, and which examples they are."""

import numpy as np
from numpy.typing import NDArray

from fl_lightning.errors import ConfigurationError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MIN_CONCENTRATION, MAX_CONCENTRATION = 1e-300, 1e300  # beyond, a Dirichlet draw under- or overflows


def check_alpha(alpha: float, name: str = "alpha") -> None:
    """Refuse what is no concentration."""
    if not alpha > 0:  # also refuses nan
        raise ConfigurationError(
            f"expected {name} > 0, got {alpha}: use a small number such as 0.01 for strong skew, .inf for none"
        )


def number(labels: Ints) -> tuple[Ints, Ints]:
    """(n,) class of every example numbered from 0, and (C,) how many examples each has: only classes that occur."""
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return codes, sizes


def dirichlet(concentration: Floats, draws: int, generator: np.random.Generator) -> Floats:
    """(draws, M) rows that sum to 1, finite for any concentration (M,) > 0."""
    return generator.dirichlet(np.clip(concentration, MIN_CONCENTRATION, MAX_CONCENTRATION), draws)


def whole(shares: Floats, sizes: Ints) -> Ints:
    """(R, M) whole numbers near shares * sizes, each row of the exact sum ``sizes``."""
    cuts = np.rint(np.cumsum(shares, axis=1) * sizes).astype(np.int64)
    cuts[:, -1:] = sizes
    return np.diff(cuts, axis=1, prepend=0)


def deal(codes: Ints, counts: Ints, generator: np.random.Generator) -> Ints:
    """(n,) owners that hold counts (C, N) examples of each class, which ones at random."""
    order = generator.permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    owners = np.empty(len(codes), dtype=np.int64)
    owners[order] = np.repeat(np.tile(np.arange(counts.shape[1]), counts.shape[0]), counts.ravel())
    return owners
