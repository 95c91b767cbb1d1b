"""PCGrad: gradient surgery."""

from typing import Literal

from typing_extensions import override

from fl_lightning import Cohort, Server, check_choice
from fl_lightning.callbacks.server.gh import GradientHarmonization


class PCGrad(GradientHarmonization):
    """Removes from each update what conflicts with other updates, then averages them uniformly (Yu et al., 2020).

    Yu et al., 2020, "Gradient Surgery for Multi-Task Learning", Algorithm 1: clients stand for tasks, updates for
    gradients. The projection is the one of :class:`GradientHarmonization`'s variant "paper"; only the weights differ.

    Args:
        reduction: "sum" adds the projected updates, as published; "mean" averages them, which makes the step K times
            shorter.
        order: order in which an update meets the others: "random", drawn anew each round (as published), or
            "ascending" or "descending" by client id.

    Raises:
        ConfigurationError: ``reduction`` or ``order`` is none of these.
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
