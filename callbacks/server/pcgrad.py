"""PCGrad: gradient surgery."""

from typing import Literal

from typing_extensions import override

from fl_lightning import Cohort, Server
from fl_lightning.callbacks.server.gh import GradientHarmonization
from fl_lightning.errors import check_choice


class PCGrad(GradientHarmonization):
    """Projects each client's update off the updates that it conflicts with; all clients then count the same.

    Yu et al., 2020, "Gradient Surgery for Multi-Task Learning", Algorithm 1: clients stand for tasks, updates for
    gradients. The projection is that of :class:`GradientHarmonization`'s paper variant; only the weights differ.

    Args:
        reduction: "sum" of the projected updates, as published, or their "mean", which is K times as short.
        order: in which a client meets the others: drawn anew each round (as published), or by client id.
    """

    settles = frozenset({"updates", "base weights"})

    def __init__(
        self,
        reduction: Literal["mean", "sum"] = "mean",
        order: Literal["random", "ascending", "descending"] = "random",
    ) -> None:
        super().__init__("paper", order)
        check_choice("reduction", reduction, "mean", "sum")
        self.reduction = reduction

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        projected = super().aggregate(orchestrator, cohort).uniform()
        scale = len(projected.weights) if self.reduction == "sum" else 1
        return projected.replace(weights=projected.weights * scale)
