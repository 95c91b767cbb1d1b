"""ClassesPerClient: every client holds a few classes."""

import numpy as np
from typing_extensions import override

from fl_lightning.datamodules.partition.base import Partition
from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.datamodules.partition.steps.shares import deal, number
from fl_lightning.errors import ConfigurationError, check_at_least


class ClassesPerClient(Partition):
    """Gives every client ``classes`` distinct classes, drawn at random so that all classes have equally many holders.

    The numbers of holders of two classes differ by at most one. The examples of a class are split evenly over its
    holders; a class with fewer examples than holders gives one example each to some of its holders. If
    num_clients * classes equals the number of classes, the clients' classes are disjoint (FedGH, Fig. 5); with more
    clients they overlap.

    Args:
        classes: number of classes per client, >= 1.

    Raises:
        ConfigurationError: ``classes`` is less than 1; in :meth:`split`, ``classes`` is more than the number of
            classes, or so small that some class would have no holder.
    """

    def __init__(self, classes: int) -> None:
        check_at_least(1, classes=classes)
        self.classes = classes

    @override
    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        codes, sizes = number(labels)
        if self.classes > len(sizes):
            raise ConfigurationError(
                f"expected classes <= {len(sizes)}, the number of classes, got {self.classes}: lower classes"
            )
        if num_clients * self.classes < len(sizes):
            raise ConfigurationError(
                f"expected num_clients x classes >= {len(sizes)}, so that every class has a holder, "
                f"got {num_clients} x {self.classes}: raise one of them"
            )
        return deal(codes, self._counts(sizes, num_clients, generator), generator)

    def _counts(self, sizes: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        """Draw (C, N) numbers of examples of each class for each client."""
        num_classes = len(sizes)
        counts = np.zeros((num_classes, num_clients), dtype=np.int64)
        missing = np.full(num_clients, self.classes)  # number of classes that each client has yet to get
        for turn, label in enumerate(generator.permutation(num_classes)):
            holders = (num_clients * self.classes + turn) // num_classes  # the sum over all turns is N x classes
            # Holders are drawn with odds missing : remaining - missing. So a client that needs all the remaining
            # classes is certain to get this one. As all classes have equally many holders, no client is left short.
            remaining = num_classes - turn
            with np.errstate(divide="ignore"):  # a client that misses no class comes last
                waiting = generator.exponential(size=num_clients) * (remaining - missing) / missing
            chosen = generator.permutation(np.argpartition(waiting, holders - 1)[:holders])
            counts[label, chosen] = self.share_out(int(sizes[label]), holders, generator)
            missing[chosen] -= 1
        return counts

    def share_out(self, size: int, holders: int, generator: np.random.Generator) -> Ints:
        """Share out the examples of one class; a subclass may draw other shares.

        Args:
            size: number of examples of the class.
            holders: H >= 1, the number of its holders, which come in random order.
            generator: source of all randomness.

        Returns:
            (H,) number of examples for each holder; they sum to ``size``.
        """
        return size // holders + (np.arange(holders) < size % holders)
