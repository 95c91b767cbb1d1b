"""Average the clients' buffers, and treat or name those whose mean is not of their kind."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

from fl_lightning.engine.module.state import overwrite

SMALL_BUFFER = 1 << 16  # entries of the largest buffer that is averaged together with others
POWER_ITERATIONS = 15  # of the spectral norm of an averaged weight, as many as torch takes at the start
UNIT = 1e-3  # distance from 1 up to which a norm is 1


def bad_buffers(before: Sequence[Tensor | None], after: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """Return a scalar on the device of a tensor, not 0 if a finite entry of a buffer has become infinite or nan.

    A mask of -inf was never finite.
    """
    starts: list[Tensor] = []
    ends: list[Tensor] = []
    for old, new in zip(before, after, strict=True):
        if new is None or new is old or not (new.is_floating_point() or new.is_complex()):
            continue
        if old is None or old.shape != new.shape:
            old = torch.zeros_like(new)
        starts.append(old)
        ends.append(new)
    if not ends:
        return like.new_zeros(())
    # One answer for all buffers together: it stays on the device, where nobody need wait for it yet.
    return (~_join(ends, like).isfinite() & _join(starts, like).isfinite()).any()


def _join(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([tensor.to_dense().flatten().to(like.device) for tensor in tensors])


def average_buffers(rows: Sequence[Sequence[Tensor | None]], num_samples: Tensor) -> list[Tensor | None]:
    """Merge the clients' buffers: the mean weighted by n_k of float buffers, the maximum of integer buffers.

    Args:
        rows: the buffers of each of the K clients.
        num_samples: (K,) numbers of training examples, n_k.

    Returns:
        One tensor per buffer, or None where clients have no tensor or tensors of different shapes: then the global
        model keeps its own. The mean is computed in float64, as a distance from the first client's value, so that
        buffers on which all clients agree do not change.

    Example:
        >>> import torch
        >>> from fl_lightning.engine.updates.buffers import average_buffers
        >>> first = [torch.tensor([2.0]), torch.tensor(5)]
        >>> second = [torch.tensor([6.0]), torch.tensor(7)]
        >>> average_buffers([first, second], num_samples=torch.tensor([1, 3]))  # 1/4 · 2 + 3/4 · 6
        [tensor([5.]), tensor(7)]
    """
    shares = num_samples.double() / num_samples.sum()
    columns = list(zip(*rows, strict=True))
    # The many small buffers of a network (those of its BatchNorms) take one product together.
    small = [place for place, values in enumerate(columns) if _is_small(values)]
    small_rows = []
    for row in rows:
        small_rows.append([row[place] for place in small])
    means = dict(zip(small, _means(small_rows, shares), strict=True))
    averaged: list[Tensor | None] = []
    for place, values in enumerate(columns):
        if place in means:
            averaged.append(means[place])
        else:
            averaged.append(_merge(values, shares.tolist()))
    return averaged


def _is_small(values: Sequence[Tensor | None]) -> bool:
    """Tell whether a buffer is averaged together with others: small, dense, real, and of one shape on all clients."""
    first = values[0]
    if first is None or all(value is first for value in values):
        return False
    plain = first.layout is torch.strided and first.is_floating_point() and first.numel() <= SMALL_BUFFER
    return plain and all(value is not None and value.shape == first.shape for value in values)


def _means(rows: Sequence[Sequence[Any]], shares: Tensor) -> list[Tensor]:
    """Average the buffers of K clients, given as K lists, by one product of the shares (K,) and all entries (K, B)."""
    like = rows[0] if rows else ()
    if not like:
        return []
    device = like[0].device
    wide_rows: list[Tensor] = []
    for row in rows:
        wide_rows.append(torch.cat([value.to(device).double().flatten() for value in row]))
    wide = torch.stack(wide_rows)
    # Where a client agrees with the first, the distance is 0, even between infinities, whose difference is nan.
    mean = wide[0] + shares.to(wide.device) @ torch.where(wide == wide[0], 0.0, wide - wide[0])
    parts = torch.split(mean, [value.numel() for value in like])
    return [part.view(value.shape).to(value.dtype) for part, value in zip(parts, like, strict=True)]


def _merge(values: Sequence[Tensor | None], shares: Sequence[float]) -> Tensor | None:
    first = values[0]
    if all(value is first for value in values):
        return first
    present = [value for value in values if value is not None]
    if first is None or len({value.shape for value in present}) > 1 or len(present) < len(values):
        warnings.warn(
            "a buffer has different shapes on different clients, and is not averaged: the global model keeps its own",
            stacklevel=2,
        )
        return None
    if first.layout is not torch.strided:
        dense = _merge([value.to_dense() for value in present], shares)
        return None if dense is None else dense.to_sparse(layout=first.layout)
    if not (first.is_floating_point() or first.is_complex()):
        return torch.stack([value.to(first.device) for value in present]).amax(0)
    wide = torch.complex128 if first.is_complex() else torch.float64
    total = first.to(wide)
    for share, value in zip(shares, present, strict=True):
        near = value.to(first.device)
        total = total + share * torch.where(near == first, 0, near.to(wide) - first.to(wide))
    return total.to(first.dtype)


@torch.no_grad()
def derive_buffers(module: nn.Module) -> None:
    """Compute anew the singular vectors of ``spectral_norm``, in both forms, and the numbers of a fake quantization.

    The vectors come of power iterations on the averaged weight, scale and zero point of the averaged range.
    """
    parts: Iterable[Any] = module.modules()
    for part in parts:
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                for _ in range(POWER_ITERATIONS):
                    hook.compute_weight(part, do_power_iteration=True)
        if isinstance(part, ParametrizationList):
            spectral_norms: list[Any] = [norm for norm in part if hasattr(norm, "_power_method")]
            for norm in spectral_norms:
                mode = norm.training
                norm.training = True  # each evaluation then takes an iteration
                for _ in range(POWER_ITERATIONS):
                    part()
                norm.training = mode
        observer: Any = getattr(part, "activation_post_process", None)
        if hasattr(part, "zero_point") and hasattr(observer, "min_val") and observer.min_val.isfinite().all():
            scale, zero_point = part.calculate_qparams()
            overwrite(part.scale, scale)
            overwrite(part.zero_point, zero_point)


def tell_shortened(names: Sequence[str], results: Sequence[Any], now: Sequence[Any], told: set[str]) -> None:
    """Say once which buffers hold vectors of unit norm on each of the K clients, but not in the global model."""
    rows = [result.buffers for result in results]
    for name, mean, *values in zip(names, now, *rows, strict=True):
        is_changed = any(value is not mean for value in values)
        if is_changed and name not in told and _is_shortened(mean, values):
            told.add(name)
            rank_zero_warn(
                f"{name} holds vectors of unit norm on every client, but shorter ones, their means, in the global "
                f"model: keep the buffer on the clients, by LocalPart with parts: [{name}] or a rule's local_part"
            )


def _is_shortened(mean: Tensor | None, values: Sequence[Tensor | None]) -> bool:
    """Tell whether vectors along the first or the last dimension have unit norm on all clients, but not in the mean."""
    if mean is None:
        return False
    for dim in {0, mean.ndim - 1}:
        if all(_are_unit(value, dim) for value in values) and not _are_unit(mean, dim):
            return True
    return False


def _are_unit(value: Tensor | None, dim: int) -> bool:
    """Tell whether all vectors along a dimension of a buffer have unit norm."""
    if value is None or not value.is_floating_point() or not 0 <= dim < value.ndim or value.shape[dim] < 2:
        return False
    dense = value.to_dense()
    if ((dense == 0) | (dense == 1)).all():  # one class or one place marked, of which a mean is a share
        return False
    return bool(((torch.linalg.vector_norm(dense, dim=dim) - 1).abs() <= UNIT).all())
