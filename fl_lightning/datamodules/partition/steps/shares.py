"""Draw shares, turn shares into numbers of examples, deal the examples."""

import numpy as np
from numpy.typing import NDArray

from fl_lightning.datamodules.partition.steps.parts import Ints, stable_order
from fl_lightning.errors import ConfigurationError

Floats = NDArray[np.float64]

MIN_CONCENTRATION, MAX_CONCENTRATION = 1e-300, 1e300  # beyond, a Dirichlet draw under- or overflows


def check_alpha(alpha: float, name: str = "alpha") -> None:
    """Refuse a concentration that is not above 0."""
    if not alpha > 0:  # also refuses nan
        raise ConfigurationError(
            f"expected {name} > 0, got {alpha}: use a small number such as 0.01 for strong skew, .inf for none"
        )


def number(labels: Ints) -> tuple[Ints, Ints]:
    """Number the classes that occur from 0: (n,) number of each example's class, (C,) examples per class."""
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return codes, sizes


def dirichlet(concentration: Floats, draws: int, generator: np.random.Generator) -> Floats:
    """Draw (draws, M) Dirichlet shares: each row sums to 1 and is finite for any concentration (M,) > 0."""
    return generator.dirichlet(np.clip(concentration, MIN_CONCENTRATION, MAX_CONCENTRATION), draws)


def whole(shares: Floats, sizes: Ints) -> Ints:
    """Turn shares into whole numbers of examples: round the cumulative sums of each row of shares * sizes.

    >>> import numpy as np
    >>> whole(np.array([[0.3, 0.3, 0.4]]), np.array([[4]]))  # cumulative sums 1.2, 2.4, 4 become 1, 2, 4
    array([[1, 1, 2]])

    Args:
        shares: (R, M) shares; each row sums to 1.
        sizes: (R, 1) number of examples to share out in each row, or one number for all rows.

    Returns:
        (R, M) whole numbers near shares * sizes; each row sums to its size exactly.
    """
    sums = np.cumsum(shares, axis=1)
    sums *= sizes  # in place, like the rounding: for a million clients, new arrays take longer than the arithmetic
    cuts = np.rint(sums, out=sums).astype(np.int64)
    cuts[:, -1:] = sizes
    cuts[:, 1:] -= cuts[:, :-1]
    return cuts


def deal(codes: Ints, counts: Ints, generator: np.random.Generator) -> Ints:
    """Deal the examples to the clients at random, with given numbers of each class for each client.

    Two of three examples of class 0 go to client 0, the other one and the example of class 1 to client 1:

    >>> import numpy as np
    >>> classes = np.array([0, 0, 0, 1])
    >>> owners = deal(classes, np.array([[2, 1], [0, 1]]), np.random.default_rng(0))
    >>> sorted(owners[:3].tolist()), int(owners[3])
    ([0, 0, 1], 1)

    Args:
        codes: (n,) class of every example, from 0 to C - 1.
        counts: (C, N) number of examples of each class for each client; row c sums to the examples of class c.
        generator: source of all randomness.

    Returns:
        (n,) client of every example.
    """
    order = generator.permutation(len(codes))
    order = order[stable_order(codes[order])]
    owners = np.empty(len(codes), dtype=np.int64)
    cells = np.flatnonzero(counts)
    owners[order] = np.repeat(cells % counts.shape[1], counts.ravel()[cells])
    return owners
