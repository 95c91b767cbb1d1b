"""The smallest value of a convex function over weights."""

from collections.abc import Callable
from typing import Any

import torch
from scipy.optimize import minimize  # type: ignore[import-untyped]  # SciPy ships no types
from torch import Tensor

TOLERANCE = 1e-16  # of the objective, absolute
STEPS = 1000


def minimize_on_simplex(
    objective: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor, lower: Tensor, upper: Tensor
) -> Tensor:
    """Weights λ with Σ λ_k = 1 and lower <= λ <= upper at which a convex function is smallest (SLSQP).

    The same input gives the same result.

    Args:
        objective: (K,) weights to a value and its gradient (K,), in float64 and of the order of one: the tolerance is
            absolute.
        start: (K,) within the bounds, sums to one; returned where nothing better is found.
        lower: (K,) at least 0.
        upper: (K,) at most 1.

    Returns:
        (K,) float64 within the bounds, sums to one up to rounding.
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
    """Weights that fail a constraint by rounding, brought within the bounds and to the sum one.

    What is missing or too much is shared by the room that each weight has.

    Args:
        weights: (K,).
        lower: (K,).
        upper: (K,).
    """
    weights = weights.clamp(lower, upper)
    gap = 1 - weights.sum()
    room = upper - weights if gap > 0 else weights - lower
    if room.sum() > 0:
        weights = weights + gap * room / room.sum()
    return weights.clamp(lower, upper)
