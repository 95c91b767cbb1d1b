"""How the training examples are dealt to the clients."""

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_lightning.errors import ConfigurationError

Form = Literal["class", "client", "rebalanced"]
Ints = NDArray[np.int64]

MAX_REDRAWS = 10_000  # of the rebalanced form
MIN_CONCENTRATION, MAX_CONCENTRATION = 1e-300, 1e300  # beyond, a Dirichlet draw under- or overflows


class Partition:
    """Deals examples to clients: every example to exactly one. A subclass implements :meth:`owners`."""

    def split(self, labels: Tensor, num_clients: int, generator: np.random.Generator) -> list[Tensor]:
        """Each client's examples.

        Args:
            labels: (n,) integer class of every example; classes that do not occur do not count.
            num_clients: N, from 1 to n.
            generator: where all randomness comes from.

        Returns:
            N int64 tensors of ascending example indices, some of them perhaps empty.

        Raises:
            ConfigurationError: there are more clients than examples, or the partition cannot serve this many clients.
        """
        if not 1 <= num_clients <= len(labels):
            raise ConfigurationError(
                f"expected 1 to {len(labels)} clients (one example each at least), got num_clients={num_clients}: "
                "lower num_clients"
            )
        owners = self.owners(labels.cpu().numpy(), num_clients, generator)
        if owners.shape != labels.shape or owners.min() < 0 or owners.max() >= num_clients:
            raise ConfigurationError(
                f"expected {type(self).__name__}.owners to return {len(labels)} clients from 0 to {num_clients - 1}, "
                f"got {len(owners)} from {owners.min()} to {owners.max()}: return one client per example"
            )
        order = torch.from_numpy(np.argsort(owners, kind="stable"))
        return list(torch.split(order, np.bincount(owners, minlength=num_clients).tolist()))

    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """The client of every example.

        Args:
            labels: (n,) class of every example.
            num_clients: N, from 1 to n.
            generator: where all randomness comes from.

        Returns:
            (n,) clients, from 0 to N - 1.
        """
        raise ConfigurationError(f"{type(self).__name__} must define owners(labels, num_clients, generator)")


class IID(Partition):
    """A random split into equal parts: sizes differ by one at most."""

    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """The client of every example: see :class:`Partition`."""
        return generator.permutation(np.arange(len(labels)) % num_clients)


class Dirichlet(Partition):
    """Label skew drawn from a Dirichlet distribution; the smaller ``alpha``, the more skew.

    Three forms, all with N clients, C classes and n examples:

    * ``"class"``: every class is dealt on its own, in shares P_c ~ Dir_N(alpha) (FedGH, Sec. 3.2; FedLAW). Client sizes
      vary and a client may end up with nothing. Shares become whole numbers by rounding their cumulative sums to the
      nearest; rounding down would hand the last client one stray example of nearly every class when alpha is small.
    * ``"client"``: every client draws its own class mix, Dir_C(alpha) on balanced data and Dir(alpha * C * prior) in
      general, where prior is the share of each class in the data (Hsu et al., 2019, whose alpha is alpha * C here).
      Client sizes are equal up to one. Examples are drawn without replacement, client after client in random order;
      a class that runs out leaves the mix and the rest is rescaled, and a client whose whole mix has run out takes
      from what is left in proportion. So the last clients served follow their mix less closely.
    * ``"rebalanced"``: as ``"class"``, but a client that has reached its fair share n / N gets nothing of the classes
      that follow (the shares of the others, rescaled, are again Dirichlet), and everything is redrawn until every
      client has ``min_samples`` examples.

    Args:
        alpha: concentration, > 0; infinity (``.inf`` in YAML) is the IID partition.
        form: one of the three above.
        min_samples: fewest examples of a client, >= 0; the rebalanced form alone reads it.

    Raises:
        ConfigurationError: an argument is outside its range.
    """

    def __init__(self, alpha: float, form: Form = "class", min_samples: int = 10) -> None:
        if not alpha > 0:  # also refuses nan
            raise ConfigurationError(
                f"expected alpha > 0, got {alpha}: use a small number such as 0.01 for strong skew, .inf for none"
            )
        if form not in get_args(Form):
            raise ConfigurationError(f"expected form to be one of {get_args(Form)}, got {form!r}: pick one of them")
        if min_samples < 0:
            raise ConfigurationError(f"expected min_samples >= 0, got {min_samples}: use 0 for no lower bound")
        self.alpha = alpha
        self.form = form
        self.min_samples = min_samples

    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """The client of every example: see :class:`Partition`."""
        if self.form == "rebalanced" and self.min_samples * num_clients > len(labels):
            raise ConfigurationError(
                f"expected at least {num_clients} x min_samples = {self.min_samples * num_clients} examples, "
                f"got {len(labels)}: lower min_samples or num_clients"
            )
        if np.isinf(self.alpha):
            return IID().owners(labels, num_clients, generator)
        draw = {"class": self._by_class, "client": self._by_client, "rebalanced": self._rebalanced}[self.form]
        codes, sizes = _classes(labels)
        return _deal(codes, draw(sizes, num_clients, generator), generator)

    def _by_class(self, sizes: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """(C, N) examples of each class for each client."""
        shares = _dirichlet(np.full(num_clients, self.alpha), len(sizes), generator)
        return _whole(shares, sizes[:, None])

    def _by_client(self, sizes: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """(C, N) examples of each class for each client, columns of equal sum up to one."""
        num_samples = int(sizes.sum())
        mixes = _dirichlet(self.alpha * len(sizes) * (sizes / num_samples), num_clients, generator)
        wanted = np.full(num_clients, num_samples // num_clients)
        wanted[generator.permutation(num_clients)[: num_samples % num_clients]] += 1
        counts = np.zeros((num_clients, len(sizes)), dtype=np.int64)
        left = sizes.copy()
        for client in generator.permutation(num_clients):
            while missing := wanted[client] - counts[client].sum():  # each pass fills the client or exhausts a class
                mix = np.where(left > 0, mixes[client], 0.0)
                mix = mix if mix.sum() > MIN_CONCENTRATION else left.astype(float)
                drawn = np.minimum(generator.multinomial(missing, mix / mix.sum()), left)
                counts[client] += drawn
                left -= drawn
        return counts.T

    def _rebalanced(self, sizes: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """(C, N) examples of each class for each client, columns of sum >= min_samples."""
        fair_share = sizes.sum() / num_clients
        for _ in range(MAX_REDRAWS):
            counts = np.zeros((len(sizes), num_clients), dtype=np.int64)
            held = np.zeros(num_clients, dtype=np.int64)
            for row, size in zip(counts, sizes, strict=True):
                below = np.flatnonzero(held < fair_share)
                row[below] = _whole(_dirichlet(np.full(len(below), self.alpha), 1, generator), size)[0]
                held += row
            if held.min() >= self.min_samples:
                return counts
        raise ConfigurationError(
            f"expected every client to get min_samples={self.min_samples} examples, got no such split of "
            f"{sizes.sum()} examples over {num_clients} clients in {MAX_REDRAWS} draws at alpha={self.alpha}: "
            "raise alpha, or lower min_samples or num_clients"
        )


class ClassesPerClient(Partition):
    """Every client holds ``classes`` distinct classes, drawn at random so that all classes have as many holders.

    The numbers of holders of two classes differ by one at most, and a class is split evenly over its holders (over as
    many as it has examples, if it has fewer). With num_clients * classes equal to the number of classes, the clients'
    classes are disjoint (FedGH, Fig. 5).

    Args:
        classes: classes per client, >= 1.

    Raises:
        ConfigurationError: ``classes`` is less than 1; in :meth:`split`, it is more than there are classes, or so few
            that some class would have no holder.
    """

    def __init__(self, classes: int) -> None:
        if classes < 1:
            raise ConfigurationError(f"expected classes >= 1 per client, got {classes}: use 1 or more")
        self.classes = classes

    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """The client of every example: see :class:`Partition`."""
        codes, sizes = _classes(labels)
        if self.classes > len(sizes):
            raise ConfigurationError(
                f"expected classes <= {len(sizes)}, the classes there are, got {self.classes}: lower it"
            )
        if num_clients * self.classes < len(sizes):
            raise ConfigurationError(
                f"expected num_clients x classes >= {len(sizes)}, so that every class has a holder, "
                f"got {num_clients} x {self.classes}: raise one of them"
            )
        holds = self._holds(len(sizes), num_clients, generator)
        counts = np.zeros(holds.shape, dtype=np.int64)
        for row, held, size in zip(counts, holds, sizes, strict=True):
            holders = generator.permutation(np.flatnonzero(held))
            row[holders] = size // len(holders) + (np.arange(len(holders)) < size % len(holders))
        return _deal(codes, counts, generator)

    def _holds(self, num_classes: int, num_clients: int, generator: np.random.Generator) -> NDArray[np.bool_]:
        """(C, N) which client holds which class: in turn, the classes with the fewest holders, ties at random."""
        holds = np.zeros((num_classes, num_clients), dtype=np.bool_)
        holders = np.zeros(num_classes, dtype=np.int64)
        for client in generator.permutation(num_clients):
            chosen = np.lexsort((generator.random(num_classes), holders))[: self.classes]
            holds[chosen, client] = True
            holders[chosen] += 1
        return holds


def _classes(labels: Ints) -> tuple[Ints, Ints]:
    """(n,) class of every example numbered from 0, and (C,) how many examples each has: only classes that occur."""
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return codes, sizes


def _dirichlet(concentration: NDArray[np.float64], draws: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """(draws, M) rows that sum to 1, finite for any concentration (M,) > 0."""
    return generator.dirichlet(np.clip(concentration, MIN_CONCENTRATION, MAX_CONCENTRATION), draws)


def _whole(shares: NDArray[np.float64], sizes: Ints) -> Ints:
    """(R, M) whole numbers near shares * sizes, each row of the exact sum ``sizes``."""
    cuts = np.rint(np.cumsum(shares, axis=1) * sizes).astype(np.int64)
    cuts[:, -1:] = sizes
    return np.diff(cuts, axis=1, prepend=0)


def _deal(codes: Ints, counts: Ints, generator: np.random.Generator) -> Ints:
    """(n,) owners that hold counts (C, N) examples of each class, which ones at random."""
    order = generator.permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    owners = np.empty(len(codes), dtype=np.int64)
    owners[order] = np.repeat(np.tile(np.arange(counts.shape[1]), counts.shape[0]), counts.ravel())
    return owners
