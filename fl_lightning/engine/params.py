"""A module's parameters as one flat vector; its buffers beside them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fl_lightning.errors import ConfigurationError


class FlatParameters:
    """The trainable parameters of a module as views into one vector.

    Setting the whole model is one copy, a snapshot one clone. Frozen parameters stay outside; a parameter that several
    layers share stands in the vector once. Moving the module to another device or dtype breaks the views, so make this
    after the module is placed.

    Args:
        module: its parameters' storage is replaced, their values are kept.

    Attributes:
        parameters: the parameters in the order of ``module.parameters()``.

    Raises:
        ConfigurationError: nothing is trainable, or the parameters are of several dtypes or not float32 or float64.
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
        """(P,) the parameters, live: writing to it writes to the module.

        A parameter whose storage has been replaced (``p.data = …``) is taken in again.
        """
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.detach())
                parameter.data = view
        return self._vector

    def views(self, vector: Tensor) -> list[Tensor]:
        """A (P,) vector cut into the shapes of the parameters; shares memory with it."""
        parts = torch.split(vector, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    @property
    def gradient(self) -> Tensor:
        """(P,) the gradients, live: writing to it changes what the next optimizer step uses.

        Built when asked for, since most local steps never need it: autograd leaves each parameter's gradient where it
        likes, and they are copied here on the first use in a step. A parameter without a gradient counts as zero.
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
        """Leave every parameter without a gradient."""
        for parameter in self.parameters:
            parameter.grad = None


def is_finite(vector: Tensor) -> bool:
    """Whether no entry is infinite or nan."""
    return all(math.isfinite(float(extreme)) for extreme in torch.aminmax(vector))  # one pass, nan reaches both


def turned_bad(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    """Whether a buffer that was finite has become infinite or nan (a mask of -inf always was)."""
    return any(bool((old.isfinite() & ~new.isfinite()).any()) for old, new in zip(before, after, strict=True))


def copy_buffers(module: nn.Module) -> list[Tensor]:
    """Snapshots of a module's buffers."""
    return [buffer.clone() for buffer in module.buffers()]


def set_buffers(module: nn.Module, values: Sequence[Tensor]) -> None:
    """Write snapshots back into a module's buffers."""
    for buffer, value in zip(module.buffers(), values, strict=True):
        buffer.copy_(value)


def average_buffers(rows: Sequence[Sequence[Tensor]], num_samples: Tensor) -> list[Tensor]:
    """The server's buffers: the mean weighted by n_k of float buffers, the maximum of integer ones.

    Args:
        rows: for each of K clients its buffers.
        num_samples: (K,) n_k.

    Returns:
        One tensor a buffer. The mean is taken around the first client's value in float64, so that buffers on which
        all clients agree come out unchanged.
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
