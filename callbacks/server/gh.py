"""FedGH: gradient harmonization."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, partners, project_conflicts
from fl_lightning.errors import check_choice

CANCELLED = 1e-7  # of its squared norm: less is left of an update than the Gram matrix can tell the direction of


def harmonize_in_turn(gram: Tensor, order: Tensor) -> Tensor:
    """Project each update off those that it conflicts with, each as it stands by then.

    Unlike :func:`fl_lightning.conflict.project_conflicts`, update j has already been projected when its turn has
    passed. An update that is cancelled completely has no direction and is left out.

    Args:
        gram: (K, K) inner products of the updates as they came.
        order: (K, K-1) row k lists the partners of update k.

    Returns:
        (K, K) matrix: row k combines the updates as they came into the harmonised update k.
    """
    projection = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    running = gram.clone()  # inner products of the updates as they stand
    floor = CANCELLED * gram.diagonal()
    for k, others in enumerate(order.tolist()):
        for j in others:
            if running[k, j] < 0 and running[j, j] > floor[j]:
                projection[k] -= running[k, j] / running[j, j] * projection[j]
                running[k] = running[:, k] = projection @ gram @ projection[k]
    return projection


class GradientHarmonization(FederatedCallback):
    """FedGH: projects each client's update off the updates that it conflicts with, then averages as usual.

    Zhang et al., "Tackling the Non-IID Issue in Heterogeneous Federated Learning by Gradient Harmonization",
    Algorithm 1. Only the direction matters there, so updates serve as gradients: the learning rate cancels. The first
    denominator of eq. (1) is read as ‖g̃_j‖², as in Algorithm 1.

    Args:
        variant: "paper" projects off the updates as they came and leaves the weights alone. "slides" (the authors'
            talk) projects off the updates as they stand by then and averages uniformly; its printed denominator
            ‖g_i‖² does not make them orthogonal and is read as ‖g_j‖².
        order: in which a client meets the others: drawn anew each round (as published), or by client id.
    """

    settles = frozenset({"updates"})

    def __init__(
        self,
        variant: Literal["paper", "slides"] = "paper",
        order: Literal["random", "ascending", "descending"] = "random",
    ) -> None:
        check_choice("variant", variant, "paper", "slides")
        check_choice("order", order, "random", "ascending", "descending")
        self.variant, self.order = variant, order

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        gram = cohort.corrected_gram
        order = partners(len(gram), self.order, orchestrator.generator("harmonization", cohort.round))
        if self.variant == "paper":
            return cohort.corrected(project_conflicts(gram, order))
        return cohort.corrected(harmonize_in_turn(gram, order)).uniform()
