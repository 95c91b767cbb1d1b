"""FedGH: gradient harmonization."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_choice, partners, project_conflicts
from fl_lightning.callbacks.server.by_layer import combine, grams
from fl_lightning.engine.module.params import layers as layers_of
from fl_lightning.later import later

CANCELLED = 1e-7  # share of an update's squared norm; a smaller remainder is rounding error, without a direction


def harmonize_in_turn(gram: Tensor, order: Tensor) -> Tensor:
    """Remove from one update after another the components that conflict with the others, as far as those are corrected.

    In :func:`fl_lightning.project_conflicts` the partners of an update are the updates before correction; here a
    partner has already been projected if its turn has passed. A partner of which nothing is left has no direction and
    is skipped.

    Updates (1, -2) and (0, 1) conflict. The first becomes (1, 0), with which the second no longer conflicts:

    >>> import torch
    >>> from fl_lightning.callbacks.server.gh import harmonize_in_turn
    >>> gram = torch.tensor([[5.0, -2.0], [-2.0, 1.0]]).double()
    >>> harmonize_in_turn(gram, order=torch.tensor([[1], [0]])).tolist()
    [[1.0, 2.0], [0.0, 1.0]]

    Args:
        gram: (K, K) inner products of the updates before correction.
        order: (K, K-1) row k lists the partners of update k in the order of the projections.

    Returns:
        (K, K) matrix: row k combines the updates before correction into the harmonised update k.
    """
    projection = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    running = gram.clone()  # inner products of the updates as projected so far
    floor = CANCELLED * gram.diagonal()
    for k, others in enumerate(order.tolist()):
        for j in others:
            if running[k, j] < 0 and running[j, j] > floor[j]:
                projection[k] -= running[k, j] / running[j, j] * projection[j]
                running[k] = running[:, k] = projection @ gram @ projection[k]
    return projection


class GradientHarmonization(FederatedCallback):
    """Removes from each update what conflicts with other updates, then averages as usual (FedGH; Zhang et al., 2023).

    Zhang et al., "Tackling the Non-IID Issue in Heterogeneous Federated Learning by Gradient Harmonization", Algorithm
    1. Each update is projected off the updates that it conflicts with. Updates can stand for the paper's gradients,
    since a projection depends on the direction of the other vector and not on its length: the learning rate cancels.
    The first denominator of eq. (1) is read as ‖g̃_j‖², as in Algorithm 1. Another method of this name, "FedGH:
    Heterogeneous Federated Learning with Generalized Global Header" (Yi et al., 2023), trains a head on the server for
    clients with networks of their own; it has no part here.

    Args:
        variant: "paper" projects off the updates before correction and leaves the weights alone. "slides" (the authors'
            talk) projects off the updates as corrected so far and averages uniformly; the talk's denominator ‖g_i‖²
            does not make updates orthogonal and is read as ‖g_j‖².
        order: order in which an update meets the others: "random", drawn anew each round (as published), or
            "ascending" or "descending" by client id.
        layers: whether each layer's part of the updates, weights and biases together, is harmonised by itself, in the
            same order. The step then takes the place of the weighted sum: rules that set the weights go with it as with
            a median, and monitors see no corrected updates.

    Raises:
        ConfigurationError: ``variant`` or ``order`` is none of these.
    """

    settles = frozenset({"updates"})

    @later(layers=False)
    def __init__(
        self,
        variant: Literal["paper", "slides"] = "paper",
        order: Literal["random", "ascending", "descending"] = "random",
        layers: bool = False,
    ) -> None:
        check_choice("variant", variant, "paper", "slides")
        check_choice("order", order, "random", "ascending", "descending")
        self.variant, self.order, self.layers = variant, order, layers
        if layers:
            self.reduce = self._step_by_layer

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        if not self.layers:
            cohort = cohort.corrected(self._harmonize(orchestrator, cohort, cohort.corrected_gram))
        return cohort if self.variant == "paper" else cohort.uniform()

    def _harmonize(self, orchestrator: Server, cohort: Cohort, gram: Tensor) -> Tensor:
        """Return the (K, K) matrix that harmonises updates with the inner products ``gram`` (K, K)."""
        order = partners(len(gram), self.order, orchestrator.generator("harmonization", cohort.round))
        return project_conflicts(gram, order) if self.variant == "paper" else harmonize_in_turn(gram, order)

    def _step_by_layer(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        sizes = [size for _, size in layers_of(orchestrator.client)]
        rows = [cohort.weights @ self._harmonize(orchestrator, cohort, gram) for gram in grams(cohort, sizes)]
        return combine(cohort, sizes, torch.stack(rows) @ cohort.mixing)
