"""ExtendedDirichlet: every client holds a few classes, in unequal shares."""

import numpy as np
from typing_extensions import override

from fl_lightning.datamodules.partition.classes import ClassesPerClient
from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.datamodules.partition.steps.shares import check_alpha, dirichlet, whole


class ExtendedDirichlet(ClassesPerClient):
    """Gives every client ``classes`` distinct classes, and shares out each class by Dir(alpha) (Li and Lyu, 2023).

    The classes are drawn as by :class:`ClassesPerClient`: the numbers of holders of two classes differ by at most one.
    The H holders of a class then get shares of its examples from Dir_H(alpha), which become whole numbers by rounding
    their cumulative sums to the nearest. With as many classes per client as there are classes, this is
    :class:`Dirichlet` in the form "class".

    Three steps differ from the authors' code: it draws the classes of each client alone, so that some classes have more
    holders than others; a client that has reached its fair share gets none of the classes that follow; and the shares
    are redrawn until every client has 10 examples. Here nothing is redrawn: if ``alpha`` is small, a client may get no
    example of one of its classes, or none at all.

    Args:
        classes: number of classes per client, >= 1.
        alpha: concentration, > 0; the smaller ``alpha``, the more unequal the shares of a class's holders; infinity
            (``.inf`` in YAML) for shares that differ by at most one example.

    Raises:
        ConfigurationError: an argument is outside its range; in :meth:`split`, as for :class:`ClassesPerClient`.
    """

    def __init__(self, classes: int, alpha: float) -> None:
        super().__init__(classes)
        check_alpha(alpha)
        self.alpha = alpha

    @override
    def share_out(self, size: int, holders: int, generator: np.random.Generator) -> Ints:
        shares = dirichlet(np.full(holders, self.alpha), 1, generator)
        counts: Ints = whole(shares, np.array([[size]]))[0]
        return counts
