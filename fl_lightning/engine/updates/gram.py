"""The algebra of updates on their K×K Gram matrix: conflict, angles, norms, projections."""

import math
from typing import Literal

import torch
from torch import Tensor

EPSILON = 1e-12  # relative size up to which an inner product counts as a rounding error


def without_rounding(gram: Tensor, scale: Tensor) -> Tensor:
    """Set to zero the entries of a Gram matrix that may be mere rounding errors.

    Rounding must not turn orthogonal updates into a conflict, or the remainder of a cancelled update into a direction.

    Args:
        gram: (K, K) inner products.
        scale: (K,) for each vector, the sum of the norms of its summands; at least the norm of the vector.

    Example:
        >>> import torch
        >>> from fl_lightning.engine.updates.gram import without_rounding
        >>> gram = torch.tensor([[1.0, -1e-16], [-1e-16, 1.0]]).double()
        >>> without_rounding(gram, scale=torch.ones(2).double()).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    return gram.masked_fill(gram.abs() <= EPSILON * scale.outer(scale), 0.0)


def gram_of_mixed(gram: Tensor, mixing: Tensor) -> Tensor:
    """Compute the inner products of combinations of updates, given those of the updates.

    Args:
        gram: (K, K) inner products of the updates, of all of their columns or of some.
        mixing: (K, K) row k has the coefficients of combination k.

    Returns:
        (K, K) inner products, those that may be rounding errors set to zero.

    Example:
        >>> import torch
        >>> from fl_lightning import gram_of_mixed
        >>> gram = torch.tensor([[4.0, -2.0], [-2.0, 2.0]]).double()  # of (2, 0) and (-1, 1)
        >>> gram_of_mixed(gram, torch.tensor([[1.0, 1.0], [0.0, 1.0]]).double()).tolist()  # of (1, 1) and (-1, 1)
        [[2.0, 0.0], [0.0, 2.0]]
    """
    scale = mixing.abs() @ gram.diagonal().sqrt()
    return without_rounding(mixing @ gram @ mixing.T, scale)


def cosines(gram: Tensor) -> Tensor:
    """Compute the cosine similarity of every pair of updates.

    Args:
        gram: (K, K) inner products.

    Returns:
        (K, K) cosines in [-1, 1]; zero for every pair with a zero update.

    Example:
        >>> import torch
        >>> from fl_lightning import cosines
        >>> deltas = torch.tensor([[3.0, 4.0], [-1.0, 0.0]])
        >>> cosines(deltas @ deltas.T)  # -3 / (5 · 1)
        tensor([[ 1.0000, -0.6000],
                [-0.6000,  1.0000]])
    """
    lengths = gram.diagonal().clamp(min=0).sqrt()
    scale = lengths.outer(lengths)
    return torch.where(scale > 0, gram / scale, torch.zeros_like(gram)).clamp(-1, 1)


def pairs(matrix: Tensor) -> Tensor:
    """Return the (K·(K-1)/2,) entries above the diagonal of a symmetric (K, K) matrix, one for each unordered pair.

    Example:
        >>> import torch
        >>> from fl_lightning import pairs
        >>> pairs(torch.tensor([[1, 2, 3], [2, 4, 5], [3, 5, 6]])).tolist()
        [2, 3, 5]
    """
    rows, columns = torch.triu_indices(len(matrix), len(matrix), offset=1)
    return matrix[rows, columns]


def conflict_ratio(gram: Tensor, weights: Tensor | None = None) -> float:
    """Compute the share of the pairs of updates whose inner product is negative, in [0, 1].

    The share is 0 if there is no pair, or no pair with a positive weight.

    Args:
        gram: (K, K) inner products.
        weights: (K,) weights λ >= 0: the pair (i, j) has the weight λ_i λ_j; by default, every pair has the weight 1.

    Example:
        >>> import torch
        >>> from fl_lightning import conflict_ratio
        >>> deltas = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [0.0, 1.0]]).double()
        >>> gram = deltas @ deltas.T
        >>> conflict_ratio(gram)  # updates 0 and 1 conflict: one pair of three
        0.3333333333333333
        >>> conflict_ratio(gram, weights=torch.tensor([1.0, 1.0, 0.5]))  # 1 / (1 + 0.5 + 0.5)
        0.5
    """
    counts = pairs(torch.ones_like(gram) if weights is None else weights.outer(weights))
    if not counts.any():
        return 0.0
    return float(counts[pairs(gram) < 0].sum() / counts.sum())


def norms(gram: Tensor, combinations: Tensor) -> Tensor:
    """Compute the norms of linear combinations of the updates.

    Args:
        gram: (K, K) inner products of the updates.
        combinations: (L, K) coefficients, one combination per row.

    Returns:
        (L,) norms; zero for a combination that may be a mere rounding error.

    Example:
        >>> import torch
        >>> from fl_lightning import norms
        >>> deltas = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
        >>> norms(deltas @ deltas.T, combinations=torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        tensor([3., 5.])
    """
    scale = combinations.abs() @ gram.diagonal().sqrt()
    squares = ((combinations @ gram) * combinations).sum(1)
    return squares.masked_fill(squares <= EPSILON * scale.square(), 0.0).sqrt()


def share_removed(gram: Tensor, mixing: Tensor) -> Tensor:
    """Compute the share of each update that a correction changed: ‖Δ_k - Δ'_k‖ / ‖Δ_k‖, where Δ' = mixing @ Δ.

    Args:
        gram: (K, K) inner products of the updates Δ.
        mixing: (K, K) coefficients of the corrected updates Δ'.

    Returns:
        (K,) shares, at least 0; 1 for an update that was replaced by zero, nan for an update that is zero.

    Example:
        >>> import torch
        >>> from fl_lightning import share_removed
        >>> deltas = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]])
        >>> share_removed(deltas @ deltas.T, mixing=torch.tensor([1.0, 0.5, 0.0]).diag())  # keep, halve, drop
        tensor([0.0000, 0.5000, 1.0000])
    """
    lengths = gram.diagonal().sqrt()
    changes = norms(gram, torch.eye(len(gram), dtype=gram.dtype) - mixing)
    return torch.where(lengths > 0, changes / lengths, torch.nan)


def angle(gram: Tensor, one: Tensor, other: Tensor) -> float | None:
    """Compute the angle between two combinations of the updates, in degrees, in [0, 180].

    The angle is 2 atan2(‖u - v‖, ‖u + v‖) for the unit vectors u and v. Unlike the arc cosine, this formula is exact
    where u and v are nearly the same combination.

    Args:
        gram: (K, K) inner products of the updates.
        one: (K,) coefficients of the first combination.
        other: (K,) coefficients of the second combination.

    Returns:
        The angle in degrees; None if a combination is zero.

    Example:
        >>> import torch
        >>> from fl_lightning import angle
        >>> deltas = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).double()
        >>> one, other = torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, 1.0]).double()
        >>> round(angle(deltas @ deltas.T, one, other), 6)  # between (2, 0) and (2, 2)
        45.0
    """
    both = torch.stack([one, other])
    lengths = norms(gram, both)
    if not lengths.all():
        return None
    u, v = both / lengths[:, None]
    apart, along = norms(gram, torch.stack([u - v, u + v])).tolist()
    return math.degrees(2 * math.atan2(apart, along))


def partners(size: int, order: Literal["random", "ascending", "descending"], generator: torch.Generator) -> Tensor:
    """Return the order in which each of K updates is projected against the others (see :func:`project_conflicts`).

    Args:
        size: K, the number of updates.
        order: "random" draws an order for every update; "ascending" and "descending" sort by client id.
        generator: the generator of the random orders.

    Returns:
        (K, K-1) indices; row k lists the updates against which update k is projected.

    Example:
        >>> import torch
        >>> from fl_lightning import partners
        >>> partners(3, "ascending", torch.Generator()).tolist()
        [[1, 2], [0, 2], [0, 1]]
    """
    every = torch.arange(size).repeat(size, 1)
    others = every[every != every.T].reshape(size, size - 1)  # row k: all but k, ascending
    if order == "random":
        return torch.stack([row[torch.randperm(size - 1, generator=generator)] for row in others])
    return others if order == "ascending" else others.flip(1)


def project_conflicts(gram: Tensor, order: Tensor) -> Tensor:
    """Remove from each update, one after another, the components that conflict with given original updates.

    For each update k and each j in row k of ``order``: if g_k · g̃_j < 0, then g_k -= (g_k · g̃_j / ‖g̃_j‖²) g̃_j, where
    g_k is the update projected so far, and g̃ are the original updates. All K updates take each step together. A step
    changes K×K numbers and does not touch the updates themselves.

    Args:
        gram: (K, K) inner products of the original updates.
        order: (K, L) row k lists the j against which update k is projected; j = k changes nothing.

    Returns:
        (K, K) matrix H: row k combines the original updates into the projected update k.

    Example:
        >>> import torch
        >>> from fl_lightning import project_conflicts
        >>> deltas = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mixing = project_conflicts(deltas @ deltas.T, order=torch.tensor([[1], [0]]))
        >>> mixing.tolist()
        [[1.0, 1.0], [0.5, 1.0]]
        >>> (mixing @ deltas).tolist()  # each is orthogonal to the other's original update
        [[1.0, 1.0], [0.0, 1.0]]
    """
    projection = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    products = gram.clone()  # entry (k, j) is g_k · g̃_j for the g_k projected so far
    squared = gram.diagonal()
    rows = torch.arange(len(gram), device=gram.device)
    for j in order.T:  # (K,) one partner for every update
        conflicting = (products[rows, j] < 0) & (j != rows)
        coefficient = torch.where(conflicting, products[rows, j] / squared[j], 0.0)
        projection[rows, j] -= coefficient
        products -= coefficient[:, None] * gram[j]
    return projection
