"""HybridDirichlet: clients with little and clients with much label skew."""

from typing import Literal

import numpy as np
from typing_extensions import override

from fl_lightning.datamodules.partition.base import Partition
from fl_lightning.datamodules.partition.dirichlet import Dirichlet
from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.datamodules.partition.steps.shares import check_alpha
from fl_lightning.errors import ConfigurationError, check_choice


class HybridDirichlet(Partition):
    """Draws the first clients with one concentration, the others from the remaining data with another (FedLAW, App. D).

    All N clients are drawn with ``alphas[0]``, and the first round(share * N) clients keep their examples; the examples
    of the other clients are dealt to these other clients anew with ``alphas[1]``. The defaults are those of the paper's
    Fig. 5 and 13. The paper's Fig. 12 has three clients of equal size, the first drawn alone: ``share=1/3`` and
    ``form="client"``, where sizes differ by at most one example (in the other form sizes vary, as everywhere else in
    the paper).

    Args:
        alphas: concentrations of the first and of the other clients, > 0; infinity for no skew.
        share: share of the clients that are drawn with the first concentration, in (0, 1).
        form: form of both draws, "class" or "client": see :class:`Dirichlet`.

    Raises:
        ConfigurationError: an argument is outside its range.
    """

    def __init__(
        self,
        alphas: tuple[float, float] = (10.0, 0.1),
        share: float = 0.5,
        form: Literal["class", "client"] = "class",
    ) -> None:
        if len(alphas) != 2:
            raise ConfigurationError(f"expected two alphas, got {alphas}: use (10.0, 0.1), say")
        for index, alpha in enumerate(alphas):
            check_alpha(alpha, f"alphas[{index}]")
        if not 0 < share < 1:  # also refuses nan
            raise ConfigurationError(f"expected share in (0, 1), got {share}: use 0.5 for half the clients")
        check_choice("form", form, "class", "client")
        self.alphas = alphas
        self.share = share
        self.form = form

    @override
    def owners(self, labels: Ints, num_clients: int, generator: np.random.Generator) -> Ints:
        first = round(self.share * num_clients)
        owners = Dirichlet(self.alphas[0], self.form).owners(labels, num_clients, generator)
        if (rest := owners >= first).any():
            others = Dirichlet(self.alphas[1], self.form)
            owners[rest] = first + others.owners(labels[rest], num_clients - first, generator)
        return owners
