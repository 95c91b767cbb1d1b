"""The algebra of updates on their K×K Gram matrix: conflict, angles, norms, projections."""

import math
from typing import Literal

import torch
from torch import Tensor

EPSILON = 1e-12  # relative size below which an inner product is rounding


def without_rounding(gram: Tensor, scale: Tensor) -> Tensor:
    """A Gram matrix with the entries that rounding alone could have made set to zero.

    An exact zero must not become a conflict, nor what is left of a cancelled update a direction.

    Args:
        gram: (K, K) inner products.
        scale: (K,) size of what was summed up to make each vector, at least its norm.
    """
    return gram.masked_fill(gram.abs() <= EPSILON * scale.outer(scale), 0.0)


def cosines(gram: Tensor) -> Tensor:
    """Cosine similarity of every pair of updates.

    Args:
        gram: (K, K) inner products.

    Returns:
        (K, K) in [-1, 1]; zero wherever an update is zero.
    """
    norms = gram.diagonal().clamp(min=0).sqrt()
    scale = norms.outer(norms)
    return torch.where(scale > 0, gram / scale, torch.zeros_like(gram)).clamp(-1, 1)


def pairs(matrix: Tensor) -> Tensor:
    """The (K·(K-1)/2,) entries above the diagonal of a symmetric (K, K) matrix: each unordered pair once."""
    rows, columns = torch.triu_indices(len(matrix), len(matrix), offset=1)
    return matrix[rows, columns]


def conflict_ratio(gram: Tensor, weights: Tensor | None = None) -> float:
    """Share of the pairs of updates whose inner product is negative, in [0, 1]; 0 where no pair counts.

    Args:
        gram: (K, K) inner products.
        weights: (K,) λ >= 0, by which the pair i, j counts λ_i λ_j; all pairs count alike by default.
    """
    counts = pairs(torch.ones_like(gram) if weights is None else weights.outer(weights))
    return float(counts[pairs(gram) < 0].sum() / counts.sum()) if counts.any() else 0.0


def norms(gram: Tensor, combinations: Tensor) -> Tensor:
    """Norms of linear combinations of the updates.

    Args:
        gram: (K, K) inner products of the updates.
        combinations: (L, K) the coefficients of one in each row.

    Returns:
        (L,); zero where rounding alone could have made it.
    """
    scale = combinations.abs() @ gram.diagonal().sqrt()
    squares = ((combinations @ gram) * combinations).sum(1)
    return squares.masked_fill(squares <= EPSILON * scale.square(), 0.0).sqrt()


def share_removed(gram: Tensor, mixing: Tensor) -> Tensor:
    """How much of each update a correction changed: ‖Δ_k - Δ'_k‖ / ‖Δ_k‖, where Δ' = mixing @ Δ.

    Args:
        gram: (K, K) inner products of the updates Δ.
        mixing: (K, K).

    Returns:
        (K,) at least 0, and 1 for an update that was replaced by zero; nan for one that is zero.
    """
    lengths = gram.diagonal().sqrt()
    changes = norms(gram, torch.eye(len(gram), dtype=gram.dtype) - mixing)
    return torch.where(lengths > 0, changes / lengths, torch.nan)


def angle(gram: Tensor, one: Tensor, other: Tensor) -> float | None:
    """Degrees in [0, 180] between two combinations of the updates.

    2 atan2(‖u - v‖, ‖u + v‖) of the unit vectors u, v: unlike the arc cosine, exact where u and v are nearly the same
    combination.

    Args:
        gram: (K, K) inner products of the updates.
        one: (K,) coefficients.
        other: (K,) likewise.

    Returns:
        None if one of them is zero.
    """
    both = torch.stack([one, other])
    lengths = norms(gram, both)
    if not lengths.all():
        return None
    u, v = both / lengths[:, None]
    apart, along = norms(gram, torch.stack([u - v, u + v])).tolist()
    return math.degrees(2 * math.atan2(apart, along))


def partners(size: int, order: Literal["random", "ascending", "descending"], generator: torch.Generator) -> Tensor:
    """For each of K updates the others, in the order in which it meets them.

    Args:
        size: K.
        order: drawn anew for every update, or by client id.
        generator: for the random order.

    Returns:
        (K, K-1) indices.
    """
    others = torch.tensor([[j for j in range(size) if j != k] for k in range(size)]).reshape(size, size - 1)
    if order == "random":
        return torch.stack([row[torch.randperm(size - 1, generator=generator)] for row in others])
    return others if order == "ascending" else others.flip(1)


def project_conflicts(gram: Tensor, order: Tensor) -> Tensor:
    """Remove from each update, one after another, the components that conflict with given original updates.

    For each k and each j in its order: if the running g_k has g_k · g̃_j < 0, then g_k -= (g_k · g̃_j / ‖g̃_j‖²) g̃_j,
    where g̃ are the updates as they came. All K rows advance together; each step is K×K, none touches the updates.

    Args:
        gram: (K, K) inner products of the updates as they came.
        order: (K, L) row k lists the j against which update k is projected; j = k changes nothing.

    Returns:
        (K, K) matrix H: row k combines the updates as they came into the projected update k.
    """
    projection = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    products = gram.clone()  # (k, j) holds the running g_k · g̃_j
    squared = gram.diagonal()
    rows = torch.arange(len(gram), device=gram.device)
    for j in order.T:  # (K,) one partner for every update
        conflicting = (products[rows, j] < 0) & (j != rows)
        coefficient = torch.where(conflicting, products[rows, j] / squared[j], 0.0)
        projection[rows, j] -= coefficient
        products -= coefficient[:, None] * gram[j]
    return projection
