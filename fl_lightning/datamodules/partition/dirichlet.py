"""Dirichlet: label skew."""

from typing import Literal, get_args

import numpy as np
from typing_extensions import override

from fl_lightning.datamodules.partition.base import Partition
from fl_lightning.datamodules.partition.iid import IID
from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.datamodules.partition.steps.shares import (
    MIN_CONCENTRATION,
    check_alpha,
    deal,
    dirichlet,
    number,
    whole,
)
from fl_lightning.errors import ConfigurationError, check_at_least, check_choice

Form = Literal["class", "client", "rebalanced"]

MAX_REDRAWS = 10_000  # draws that the rebalanced form tries


class Dirichlet(Partition):
    """Skews the clients' labels by shares from a Dirichlet distribution; the smaller ``alpha``, the more skew.

    Three forms, all with N clients, C classes and n examples:

    * ``"class"``: every class is dealt on its own, in shares P_c ~ Dir_N(alpha) (FedGH, Sec. 3.2; FedLAW). Client sizes
      vary, and a client may get no example. Shares become whole numbers by rounding their cumulative sums to the
      nearest; rounding down would give the last client one stray example of nearly every class when alpha is small.
    * ``"client"``: every client draws its own class mix, Dir_C(alpha) on balanced data and Dir(alpha * C * prior) in
      general, where prior is the share of each class in the data (Hsu et al., 2019, whose alpha is alpha * C here).
      Client sizes differ by at most one. Examples are drawn without replacement: all clients draw at once, and a class
      serves the clients in random order (one order for all classes) until the class runs out. A client draws its
      missing examples again from its mix without that class, rescaled; a client whose whole mix has run out draws in
      proportion to the remaining examples. So the clients served last follow their mix less closely; over all clients,
      the variance of class shares is within 15 % of the Dirichlet's for alpha <= 1 and 20 clients or more (measured).
      Hsu et al. finish one client before the next, with the same effect on the last clients.
    * ``"rebalanced"``: as ``"class"``, but a client that has reached its fair share n / N gets no examples of the
      classes that follow (the shares of the other clients, rescaled, are again Dirichlet), and the whole partition is
      redrawn until every client has ``min_samples`` examples.

    Args:
        alpha: concentration, > 0; infinity (``.inf`` in YAML) is the IID partition.
        form: "class", "client" or "rebalanced".
        min_samples: smallest number of examples of a client, >= 0; only the rebalanced form uses it.

    Raises:
        ConfigurationError: an argument is outside its range; in :meth:`split`, no partition with ``min_samples`` is
            found.
    """

    def __init__(self, alpha: float, form: Form = "class", min_samples: int = 10) -> None:
        check_alpha(alpha)
        check_choice("form", form, *get_args(Form))
        check_at_least(0, min_samples=min_samples)
        self.alpha = alpha
        self.form = form
        self.min_samples = min_samples

    @override
    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        if self.form == "rebalanced" and self.min_samples * num_clients > len(labels):
            raise ConfigurationError(
                f"expected at least {num_clients} x min_samples = {self.min_samples * num_clients} examples, "
                f"got {len(labels)}: lower min_samples or num_clients"
            )
        if np.isinf(self.alpha):
            return IID().owners(labels, num_clients, generator)
        draw = {"class": self._by_class, "client": self._by_client, "rebalanced": self._rebalanced}[self.form]
        codes, sizes = number(labels)
        return deal(codes, draw(sizes, num_clients, generator), generator)

    def _by_class(self, sizes: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """Draw (C, N) numbers of examples of each class for each client."""
        shares = dirichlet(np.full(num_clients, self.alpha), len(sizes), generator)
        return whole(shares, sizes[:, None])

    def _by_client(self, sizes: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """Draw (C, N) numbers of examples of each class for each client; column sums differ by at most one."""
        num_samples = int(sizes.sum())
        mixes = dirichlet(self.alpha * len(sizes) * (sizes / num_samples), num_clients, generator)
        missing = np.full(num_clients, num_samples // num_clients)
        missing[: num_samples % num_clients] += 1
        counts = np.zeros((num_clients, len(sizes)), dtype=np.int64)
        while len(unfilled := np.flatnonzero(missing)):  # every pass uses up a class or is the last
            left = sizes - counts.sum(axis=0)
            mix = np.where(left > 0, mixes[unfilled], 0.0)
            mix[mix.sum(axis=1) <= MIN_CONCENTRATION] = left
            wanted = generator.multinomial(missing[unfilled], mix / mix.sum(axis=1, keepdims=True))
            got = np.diff(np.minimum(np.cumsum(wanted, axis=0), left), axis=0, prepend=0)
            counts[unfilled] += got
            missing[unfilled] -= got.sum(axis=1)
        return generator.permutation(counts).T  # otherwise client 0 would always be served first

    def _rebalanced(self, sizes: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """Draw (C, N) numbers of examples of each class for each client; every column sums to >= min_samples."""
        fair_share = sizes.sum() / num_clients
        for _ in range(MAX_REDRAWS):
            counts = np.zeros((len(sizes), num_clients), dtype=np.int64)
            held = np.zeros(num_clients, dtype=np.int64)
            for row, size in zip(counts, sizes, strict=True):
                below = np.flatnonzero(held < fair_share)
                row[below] = whole(dirichlet(np.full(len(below), self.alpha), 1, generator), size)[0]
                held += row
            if held.min() >= self.min_samples:
                return counts
        raise ConfigurationError(
            f"expected every client to get min_samples={self.min_samples} examples, got no such split of "
            f"{sizes.sum()} examples over {num_clients} clients in {MAX_REDRAWS} draws at alpha={self.alpha}: "
            "raise alpha, or lower min_samples or num_clients"
        )
