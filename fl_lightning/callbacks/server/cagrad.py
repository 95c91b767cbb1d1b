"""CAGrad: conflict-averse gradient descent."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_within
from fl_lightning.callbacks.server.simplex import minimize_on_simplex
from fl_lightning.engine.updates.gram import EPSILON


def conflict_averse_weights(gram: Tensor, weights: Tensor, c: float) -> Tensor:
    """Compute the coefficients of the updates in CAGrad's step g0 + √φ / ‖g_w‖ g_w, with φ = c²‖g0‖².

    g0 and g_w are the sums of the updates with the given weights and with the weights w. w minimises g_w·g0 + √φ ‖g_w‖
    over the simplex. If g0 or the best g_w is zero, the step is g0.

    Two orthogonal unit updates, of which the average g0 holds only the first. Along g0 the second client gains nothing,
    so that the step also goes c‖g0‖ = 0.5 along the second update:

    >>> import torch
    >>> from fl_lightning.callbacks.server.cagrad import conflict_averse_weights
    >>> weights = conflict_averse_weights(torch.eye(2).double(), torch.tensor([1.0, 0.0]).double(), c=0.5)
    >>> weights.round(decimals=4).tolist()
    [1.0, 0.5]

    Args:
        gram: (K, K) inner products of the updates.
        weights: (K,) weights of the updates in g0.
        c: radius around g0 in units of ‖g0‖, in [0, 1).

    Returns:
        (K,) coefficients of the updates in the step.
    """
    norms = gram.diagonal().sqrt()
    unit = gram / norms.max() ** 2  # in units of the largest update: w does not depend on the scale
    along = unit @ weights
    squared = weights @ along
    if c == 0 or not squared > 0:  # nan if all updates are zero
        return weights
    radius = c * squared.sqrt()

    def objective(w: Tensor) -> tuple[Tensor, Tensor]:
        product = unit @ w
        length = (w @ product).clamp(min=0).sqrt()
        slope = product / length if length > 0 else torch.zeros_like(product)
        return along @ w + radius * length, along + radius * slope

    w = minimize_on_simplex(objective, weights / weights.sum(), torch.zeros_like(weights), torch.ones_like(weights))
    w = w.masked_fill(w <= EPSILON, 0.0)  # the solver leaves a rounding error of a weight that is zero
    left = w @ unit @ w
    return weights + radius * left.rsqrt() * w if left > EPSILON * (w @ norms / norms.max()) ** 2 else weights


class CAGrad(FederatedCallback):
    """Weighs the updates so that the step, near their average, helps the worst-off client most (Liu et al., 2021).

    Liu et al., 2021, "Conflict-Averse Gradient Descent for Multi-task Learning", Algorithm 1. Of all steps within c‖g0‖
    of the average g0, the rule takes the step along which the client that gains least gains most. Clients stand for
    tasks, updates for gradients, and g0 has the run's weights in place of 1/K. Even without conflict the step is longer
    than the average: one client alone gives 1 + c times its update. The released code of the paper's experiments
    divides the step by 1 + c² (its ``rescale=1``); Algorithm 1 does not.

    FedOMG (Nguyen et al., 2025) is this rule with ``rescale`` and uniform weights, as its released code for federated
    learning has it. Its code for domain generalization first multiplies each update by the client's share of the
    examples.

    Args:
        c: radius in [0, 1), in units of ‖g0‖; 0 is FedAvg.
        rescale: whether the step is divided by 1 + c², as in the released code.

    Raises:
        ConfigurationError: c is out of range.
    """

    settles = frozenset({"weights"})

    def __init__(self, c: float = 0.5, rescale: bool = False) -> None:
        check_within("[0, 1)", c=c)
        self.c, self.rescale = c, rescale

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        weights = conflict_averse_weights(cohort.corrected_gram, cohort.weights, self.c)
        return cohort.replace(weights=weights / (1 + self.c**2) if self.rescale else weights)
