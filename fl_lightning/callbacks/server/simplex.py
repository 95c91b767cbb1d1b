"""Minimisation of convex functions over weights that sum to one."""

from collections.abc import Callable
from typing import Any

import torch
from scipy.optimize import minimize  # type: ignore[import-untyped]  # SciPy ships no types
from torch import Tensor

TOLERANCE = 1e-16  # of SLSQP, on the objective's value, absolute
STEPS = 1000  # largest number of SLSQP's iterations


def minimize_on_simplex(
    objective: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor, lower: Tensor, upper: Tensor
) -> Tensor:
    """Find the weights λ with Σ λ_k = 1 and lower <= λ <= upper at which a convex function is smallest (SLSQP).

    The same input gives the same result.

    3 λ_1 + λ_2 is smallest where λ_2 is as large as it may be:

    >>> import torch
    >>> from fl_lightning.callbacks.server.simplex import minimize_on_simplex
    >>> slope = torch.tensor([3.0, 1.0]).double()
    >>> start, lower, upper = torch.tensor([[0.5, 0.5], [0.0, 0.0], [1.0, 0.75]]).double()
    >>> minimize_on_simplex(lambda weights: (slope @ weights, slope), start, lower, upper).round(decimals=4).tolist()
    [0.25, 0.75]

    Args:
        objective: function from weights (K,) to its value and gradient (K,), in float64. Values should be of the order
            of one, since the tolerance is absolute.
        start: (K,) weights within the bounds that sum to one; returned if nothing better is found.
        lower: (K,) lower bounds, at least 0.
        upper: (K,) upper bounds, at most 1.

    Returns:
        (K,) float64 weights within the bounds that sum to one up to rounding.
    """

    def evaluate(x: Any) -> tuple[float, Any]:
        value, gradient = objective(torch.tensor(x))
        return float(value), gradient.numpy()

    found = minimize(
        evaluate,
        start.numpy(),
        jac=True,
        bounds=list(zip(lower.tolist(), upper.tolist(), strict=True)),
        method="SLSQP",
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: torch.ones(len(x)).double().numpy()},
        options={"ftol": TOLERANCE, "maxiter": STEPS},
    )
    weights = onto_simplex(torch.tensor(found.x), lower, upper)
    better = objective(weights)[0] < objective(start)[0]  # False for nan, too
    return weights if better else start.clone()


def onto_simplex(weights: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Move weights that break a constraint by rounding errors: back within their bounds, and to a sum of 1.

    The weights share the deficit or surplus in proportion to the room that each has to its bound.

    In this example, 0.5 is missing from the sum, and the weights have the room 0.25 and 0.75 to their bounds:

    >>> import torch
    >>> from fl_lightning.callbacks.server.simplex import onto_simplex
    >>> onto_simplex(torch.tensor([0.25, 0.25]), lower=torch.zeros(2), upper=torch.tensor([0.5, 1.0])).tolist()
    [0.375, 0.625]

    Args:
        weights: (K,) weights, within the bounds and with the sum 1 up to rounding errors.
        lower: (K,) lower bounds.
        upper: (K,) upper bounds.

    Returns:
        (K,) weights within the bounds that sum to 1.
    """
    weights = weights.clamp(lower, upper)
    gap = 1 - weights.sum()
    room = upper - weights if gap > 0 else weights - lower
    if room.sum() > 0:
        weights = weights + gap * room / room.sum()
    return weights.clamp(lower, upper)
