"""FairGrad: the step that shares what the clients gain α-fairly."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_positive, cosines
from fl_lightning.engine.updates.gram import EPSILON

STEPS = 300  # largest number of Newton steps; ten are usual
SMALL = 1e-12  # relative step at which the solution stands


def fair_weights(gram: Tensor, alpha: float) -> Tensor:
    """Find the weights w > 0 with G w = w^(-1/α), by which client i's update gets the inner product w_i^(-1/α).

    Two orthogonal updates of the norms 2 and 4 with α = 1: 4 w_1 = 1 / w_1 and 16 w_2 = 1 / w_2.

    >>> import torch
    >>> from fl_lightning.callbacks.server.fairgrad import fair_weights
    >>> fair_weights(torch.tensor([[4.0, 0.0], [0.0, 16.0]]).double(), alpha=1.0).round(decimals=6).tolist()
    [0.5, 0.25]

    Args:
        gram: (K, K) inner products of the updates.
        alpha: α > 0.

    Returns:
        (K,) w, in which a zero update has 0, with a relative error of about 1e-8, and a larger one for α far from 1 if
        some updates are 10⁵ times as long as others. Zeros if some sum of the updates with weights w >= 0 cancels, up
        to rounding: then no step helps all clients, and the equation has no solution.
    """
    lengths = gram.diagonal().sqrt()
    present = lengths > 0
    weights = torch.zeros_like(lengths)
    if present.any():
        power = 1 / alpha
        unit = lengths.max()
        relative = lengths[present] / unit
        balanced = _balance(cosines(gram)[present][:, present], relative ** (power - 1), power)
        weights[present] = balanced / relative * unit ** (-2 / (1 + power))
    return weights


def _balance(angles: Tensor, target: Tensor, power: float) -> Tensor:
    """Solve C v = b v^-p for v > 0: there v·C v / 2 - Σ b_i φ(v_i), with φ' = v^-p, is smallest (Newton's method).

    Zeros if some combination of the vectors cancels: v then grows without end, or some client gains nothing.
    """

    def objective(v: Tensor) -> Tensor:
        gains = v.log() if power == 1 else v ** (1 - power) / (1 - power)
        return v @ angles @ v / 2 - target @ gains

    v = target ** (1 / (1 + power))  # the solution for orthogonal updates
    for _ in range(STEPS):
        if v @ angles @ v <= EPSILON * v.sum() ** 2:
            return torch.zeros_like(v)
        slope = angles @ v - target * v**-power
        curvature = angles + (power * target * v ** (-power - 1)).diag()
        step, singular = torch.linalg.solve_ex(curvature, -slope)
        if singular:  # the weights have grown until their part of the curvature is lost in rounding
            return torch.zeros_like(v)
        size = 1 / max(1.0, float((-step / v).max()) / 0.9)  # which leaves a tenth of every weight
        value = objective(v)
        rounding = SMALL * value.abs()
        while objective(v + size * step) > value + rounding and size > SMALL:
            size /= 2
        v = v + size * step
        if (step / v).abs().max() < SMALL:
            break
    return v if (angles @ v > 0).all() else torch.zeros_like(v)


class FairGrad(FederatedCallback):
    """Weighs the updates so that the clients' gains of the step are α-fair (Ban & Ji, 2024).

    Ban & Ji, 2024, "Fair Resource Allocation in Multi-Task Learning", eq. 4 and Algorithm 1. Clients stand for tasks,
    updates for gradients; a client gains the inner product of the step with its update. Of all directions, that with
    G w = w^(-1/α) has the α-fairest gains: α = 1 is proportional fairness (:class:`NashMTL`), a larger α serves the
    clients that gain least. The released code searches for the equation's least squares; here its solution is found to
    rounding, by Newton's method. That code also multiplies the step by K before it limits the step's length: here the
    step is that of the equation. The run's weights do not count. A zero update gets no weight; where updates cancel, as
    opposite ones do, no step helps all clients, and none is taken.

    Args:
        alpha: α > 0; the released code's default is 1.
        max_norm: largest length of the step, as in the released code. Of itself, the length depends little on the
            updates' lengths: if all are multiplied by c, it is multiplied by c^((1-α)/(1+α)). The server optimizer's
            learning rate multiplies it.

    Raises:
        ConfigurationError: an argument is not positive.
    """

    settles = frozenset({"weights"})

    def __init__(self, alpha: float = 1.0, max_norm: float = 1.0) -> None:
        check_positive(alpha=alpha, max_norm=max_norm)
        self.alpha, self.max_norm = alpha, max_norm

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        gram = cohort.corrected_gram
        weights = fair_weights(gram, self.alpha)
        length = float((weights @ gram @ weights).clamp(min=0).sqrt())
        return cohort.replace(weights=weights * min(1.0, self.max_norm / length) if length else weights)
