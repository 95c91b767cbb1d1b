"""A module's parameters as one flat vector, and copies and averages of its buffers."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fl_lightning.errors import ConfigurationError


class FlatParameters:
    """The trainable parameters of a module as views into one vector.

    Setting the whole model takes one copy, a snapshot one clone. Frozen parameters stay outside; a parameter that
    several layers share is in the vector once. Moving the module to another device or dtype breaks the views, so move
    the module first.

    Args:
        module: the module; the storage of its parameters is replaced, their values are kept.

    Attributes:
        parameters: the trainable parameters in the order of ``module.parameters()``.

    Raises:
        ConfigurationError: no parameter is trainable, or the dtypes differ or are neither float32 nor float64.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        dtypes = sorted({str(p.dtype) for p in self.parameters})
        if dtypes not in (["torch.float32"], ["torch.float64"]):
            raise ConfigurationError(
                f"{type(module).__name__} must have trainable parameters of one dtype, float32 or float64, got "
                f"{dtypes or 'none'}: train in lower precision with bf16-mixed or 16-mixed, unfreeze what is to learn"
            )
        with torch.no_grad():
            self._vector = torch.cat([p.reshape(-1) for p in self.parameters])
        self._views = self.views(self._vector)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.data = view
        self._gradient: Tensor | None = None
        self._gradient_views: list[Tensor] = []

    @property
    def vector(self) -> Tensor:
        """(P,) the live parameters: writing to the vector writes to the module.

        A parameter whose storage has been replaced (``p.data = …``) is copied into the vector and becomes a view again.
        """
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.detach())
                parameter.data = view
        return self._vector

    def views(self, vector: Tensor) -> list[Tensor]:
        """Cut a (P,) vector into the shapes of the parameters; the parts share its memory."""
        parts = torch.split(vector, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    @property
    def gradient(self) -> Tensor:
        """(P,) the live gradients: writing to the vector changes the next optimizer step.

        The vector is filled on demand, since most local steps never need it: autograd gives each parameter a gradient
        of its own, and the first use in a step copies the gradients into the vector. A missing gradient counts as zero.
        """
        if self._gradient is None:
            self._gradient = torch.zeros_like(self.vector)
            self._gradient_views = self.views(self._gradient)
        for parameter, view in zip(self.parameters, self._gradient_views, strict=True):
            if parameter.grad is not view:
                view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
                parameter.grad = view
        return self._gradient

    def set_gradient(self, gradient: Tensor) -> None:
        """Give every parameter its part of a (P,) gradient."""
        for parameter, view in zip(self.parameters, self.views(gradient), strict=True):
            parameter.grad = view

    def clear_gradient(self) -> None:
        """Set every parameter's gradient to None."""
        for parameter in self.parameters:
            parameter.grad = None


def is_finite(vector: Tensor) -> bool:
    """Whether all entries of a vector are finite."""
    return all(math.isfinite(float(extreme)) for extreme in torch.aminmax(vector))  # one pass; nan turns both into nan


def turned_bad(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    """Whether a finite entry of a buffer has become infinite or nan (a mask of -inf was never finite)."""
    return any(bool((old.isfinite() & ~new.isfinite()).any()) for old, new in zip(before, after, strict=True))


def copy_buffers(module: nn.Module) -> list[Tensor]:
    """Return copies of a module's buffers."""
    return [buffer.clone() for buffer in module.buffers()]


def set_buffers(module: nn.Module, values: Sequence[Tensor]) -> None:
    """Write values, one tensor per buffer, into a module's buffers."""
    for buffer, value in zip(module.buffers(), values, strict=True):
        buffer.copy_(value)


def average_buffers(rows: Sequence[Sequence[Tensor]], num_samples: Tensor) -> list[Tensor]:
    """Merge the clients' buffers: the mean weighted by n_k of float buffers, the maximum of integer buffers.

    Args:
        rows: the buffers of each of the K clients.
        num_samples: (K,) numbers of training examples, n_k.

    Returns:
        One tensor per buffer. The mean is computed in float64, as a distance from the first client's value, so that
        buffers on which all clients agree do not change.

    Example:
        >>> import torch
        >>> from fl_lightning.engine.params import average_buffers
        >>> one, other = [torch.tensor([2.0]), torch.tensor(5)], [torch.tensor([6.0]), torch.tensor(7)]
        >>> average_buffers([one, other], num_samples=torch.tensor([1, 3]))  # 1/4 · 2 + 3/4 · 6
        [tensor([5.]), tensor(7)]
    """
    shares = (num_samples.double() / num_samples.sum()).tolist()
    merged = []
    for values in zip(*rows, strict=True):
        first = values[0]
        if first.is_floating_point() or first.is_complex():
            wide = torch.complex128 if first.is_complex() else torch.float64
            total = first.to(wide)
            for share, value in zip(shares, values, strict=True):
                total = total + share * torch.where(value == first, 0, value.to(wide) - first.to(wide))
            merged.append(total.to(first.dtype))
        else:
            merged.append(torch.stack(values).amax(0))
    return merged
