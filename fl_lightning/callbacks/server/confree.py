"""ConFREE: in every layer, a conflict-averse step around the mean of projected updates."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import (
    Cohort,
    FederatedCallback,
    Server,
    check_choice,
    check_within,
    partners,
    project_conflicts,
)
from fl_lightning.callbacks.server.by_layer import combine, grams
from fl_lightning.callbacks.server.cagrad import conflict_averse_weights


class ConFREE(FederatedCallback):
    """Steps, in every layer, where the worst-off client gains most near the projected mean (Zheng et al., 2025).

    Zheng et al., "ConFREE: Conflict-free Client Update Aggregation for Personalized Federated Learning": the updates
    are projected off those that they conflict with, as in :class:`PCGrad`; their mean guides :class:`CAGrad`'s step of
    the updates as they were, divided by 1 + c², as released. Each parameter is a layer, as in the released code, whose
    projections lack the division by ‖g_j‖², and whose solver stops at equal weights where updates are small; here they
    have the division, and the solver does not see the updates' scale. Clients count by the run's weights in the guide;
    the published rule has equal ones (:class:`FedAvg`'s "uniform"). The personal rule that a client serves itself by,
    such as :class:`FedALA` or :class:`LocalPart`, is listed beside.

    Args:
        c: radius in [0, 1), in units of the guide's length; 0 is :class:`PCGrad` by layer.
        order: order in which an update meets the others: "random", drawn anew for each round and layer (as published),
            or "ascending" or "descending" by client id.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    def __init__(self, c: float = 0.5, order: Literal["random", "ascending", "descending"] = "random") -> None:
        check_within("[0, 1)", c=c)
        check_choice("order", order, "random", "ascending", "descending")
        self.c, self.order = c, order

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        generator = orchestrator.generator("confree", cohort.round)
        sizes = [part.numel() for part in orchestrator.split(cohort.anchor)]
        rows: list[Tensor] = []
        for gram in grams(cohort, sizes):
            order = partners(len(gram), self.order, generator)
            guide = cohort.weights @ project_conflicts(gram, order)
            rows.append(conflict_averse_weights(gram, guide, self.c) / (1 + self.c**2))
        return combine(cohort, sizes, torch.stack(rows) @ cohort.mixing)
