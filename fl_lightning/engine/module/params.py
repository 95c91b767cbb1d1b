"""A module's trainable parameters as one flat vector."""

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl_lightning.errors import ConfigurationError

INTEGERS = {4: torch.int32, 8: torch.int64}  # by the size of a number in bytes
NAMED_PARAMETERS = 12  # largest number of parameters that a message names


class FlatParameters:
    """The trainable parameters of a module as views into one vector.

    Setting the whole model takes one copy, a snapshot one clone. Frozen parameters stay outside; a parameter that
    several layers share is in the vector once. After the module has moved to another device or dtype, as the Trainer
    moves it at the end of a fit, the next use of the vector makes a new one there.

    A parameter keeps its memory format (``channels_last``, transposed), so the vector holds the parameters in the order
    of their memory; :func:`join` makes such vectors of other tensors.

    Args:
        module: the module; the storage of its parameters is replaced, their values are kept.

    Attributes:
        parameters: the trainable parameters in the order of ``module.parameters()``.
        names: the names of the parameters.
        orders: the order of each parameter's dimensions in memory, as :func:`memory_order` returns it.
        local: (L,) the places in the vector of what stays with each client, and is not sent.

    Raises:
        ConfigurationError: no parameter is trainable, the dtypes differ or are neither float32 nor float64, a parameter
            has no shape yet, or two parameters share memory.
    """

    def __init__(self, module: nn.Module) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.parameters = [p for _, p in named]
        self._module = module
        self.names = [name for name, _ in named]
        self.local = torch.empty(0, dtype=torch.int64)
        self._tree = Tree(module)
        self._frozen = [p for p in module.parameters() if not p.requires_grad]
        _refuse_lazy(module)
        if not named:
            raise ConfigurationError(f"{type(module).__name__} has no trainable parameter: unfreeze what is to learn")
        dtypes = sorted({str(p.dtype) for p in self.parameters})
        if dtypes not in (["torch.float32"], ["torch.float64"]):
            raise ConfigurationError(
                f"{type(module).__name__} must have trainable parameters of one dtype, float32 or float64, got "
                f"{dtypes}: train in lower precision with bf16-mixed or 16-mixed"
            )
        _refuse_overlaps(module, named)
        self.orders = [memory_order(p) for p in self.parameters]
        self._forms = [(p.shape, _stride(p)) for p in self.parameters]
        self._flatten()

    def _flatten(self) -> None:
        with torch.inference_mode(False), torch.no_grad():  # the vector may be used first while the Trainer validates
            vector = join(self.parameters, self.orders)
        self._hold(vector, self.views(vector))
        self._gradient: Tensor | None = None
        self._gradient_views: list[Tensor] = []

    def _hold(self, vector: Tensor, views: list[Tensor]) -> None:
        """Make the parameters views of the parts of a vector."""
        self._vector = vector
        self._views = views
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view

    @contextmanager
    def at(self, point: Tensor) -> Iterator[None]:
        """Make the parameters views of another contiguous vector (P,) inside a ``with`` block."""
        held = self.vector
        views = self._views
        self._hold(point, self.views(point))
        try:
            yield
        finally:
            self._hold(held, views)

    @property
    def vector(self) -> Tensor:
        """(P,) the live parameters: writing to the vector writes to the module.

        A parameter whose storage has been replaced (``p.data = …``) is copied into the vector and becomes a view again.
        """
        if (self.parameters[0].device, self.parameters[0].dtype) != (self._vector.device, self._vector.dtype):
            self._flatten()
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.detach())
                parameter.data = view
        return self._vector

    @property
    def writes(self) -> int:
        """Number of writes in place to the vector and the parameters, but those by ``.data``; no wait for a GPU."""
        return self._vector._version + sum(parameter._version for parameter in self.parameters)

    def views(self, vector: Tensor) -> list[Tensor]:
        """Cut a (P,) vector into the shapes of the parameters; the parts share its memory."""
        parts = torch.split(vector, [p.numel() for p in self.parameters])
        views = []
        for part, (shape, stride) in zip(parts, self._forms, strict=True):
            if stride is None:
                views.append(part.view(shape))
            else:
                views.append(part.as_strided(shape, stride))
        return views

    def columns_of(self, name: str) -> slice:
        """Return the columns of a parameter, or of a submodule's parameters; see :meth:`Server.columns_of`."""
        inside = [at for at, known in enumerate(self.names) if f"{known}.".startswith(f"{name}.")]
        if not inside:
            listed = self.names[:NAMED_PARAMETERS]
            if len(self.names) > NAMED_PARAMETERS:
                listed = [*listed, "…"]
            raise ConfigurationError(
                f"columns_of must get the name of a parameter or submodule of {type(self._module).__name__}, got "
                f"{name!r}: the trainable parameters are {', '.join(listed)}"
            )
        bounds = [0, *accumulate(parameter.numel() for parameter in self.parameters)]
        return slice(bounds[inside[0]], bounds[inside[-1] + 1])  # the parameters of a submodule are neighbours

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Make a (P,) vector of tensors in the shapes of the parameters."""
        return join(parts, self.orders)

    @property
    def gradient(self) -> Tensor:
        """(P,) the live gradients: writing to the vector changes the next optimizer step.

        The vector is made on demand, since most local steps never need it: autograd gives each parameter a gradient of
        its own, and the first use after a backward pass joins them. A missing gradient counts as zero.
        """
        given = [parameter.grad for parameter in self.parameters]
        if self._gradient is None or any(map(operator.is_not, given, self._gradient_views)):
            gradient = self.join(list(map(_dense, given, self.parameters)))
            self.set_gradient(gradient)
            return gradient
        return self._gradient

    def take_in(self) -> None:
        """Copy parameters that the module has registered in place of the vector's own into the vector.

        Raises:
            ConfigurationError: a new parameter has another shape, or a parameter is gone.
        """
        if self._tree.is_whole():
            return
        named = dict(self._module.named_parameters(remove_duplicate=False))
        for name, parameter, view in zip(self.names, self.parameters, self._views, strict=True):
            now = named.get(name)
            if now is parameter:
                continue
            if now is None or now.shape != parameter.shape:
                raise ConfigurationError(
                    f"a client replaced the parameter {name} of shape {tuple(parameter.shape)} by "
                    f"{None if now is None else tuple(now.shape)}: keep the shapes of parameters during a fit"
                )
            view.copy_(now.detach())

    def set_gradient(self, gradient: Tensor) -> None:
        """Give every parameter its part of a (P,) gradient."""
        self._gradient = gradient
        self._gradient_views = self.views(gradient)
        for parameter, view in zip(self.parameters, self._gradient_views, strict=True):
            parameter.grad = view

    def clear_gradient(self) -> None:
        """Set the gradient of every parameter, also of those that were frozen at first, to None."""
        for parameter in [*self.parameters, *self._frozen]:
            parameter.grad = None


def registry(part: nn.Module, name: str) -> dict[str, Any]:
    """Return the dict in which a module registers what it holds; a copy of what stands for a dict in TorchScript.

    Args:
        part: the module.
        name: "_modules", "_parameters" or "_buffers".
    """
    own = getattr(part, name)
    return own if isinstance(own, dict) else dict(own.items())


class Tree:
    """The submodules and parameters that a module had registered at one time."""

    def __init__(self, module: nn.Module) -> None:
        self._entries: list[tuple[dict[str, Any], str, Any]] = []
        for part in module.modules():
            for own in (registry(part, "_modules"), registry(part, "_parameters")):
                self._entries += [(own, name, value) for name, value in own.items()]

    def is_whole(self) -> bool:
        """Tell whether all submodules and parameters are still registered where they were."""
        return all(own.get(name) is value for own, name, value in self._entries)


def memory_order(tensor: Tensor) -> list[int] | None:
    """Return the dimensions from slowest to fastest in memory; None for a contiguous tensor, or one with gaps."""
    if tensor.is_contiguous():
        return None
    order = sorted(range(tensor.ndim), key=lambda dim: -tensor.stride()[dim])
    return order if tensor.permute(order).is_contiguous() else None


def _dense(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient


def _stride(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a tensor without gaps in memory; None if a contiguous tensor of this shape has them."""
    usual = torch.empty(tensor.shape, device="meta").stride()
    has_gaps = not tensor.is_contiguous() and memory_order(tensor) is None
    return None if has_gaps or tensor.stride() == usual else tensor.stride()


def join(parts: Sequence[Tensor], orders: Sequence[list[int] | None]) -> Tensor:
    """Make one vector of several tensors.

    Args:
        parts: the tensors.
        orders: the order in which each tensor's dimensions are read, as :func:`memory_order` returns it.

    Example:
        >>> import torch
        >>> from fl_lightning.engine.module.params import join, memory_order
        >>> tensor = torch.tensor([[1, 2], [3, 4]])
        >>> join([tensor, tensor], [memory_order(tensor), memory_order(tensor.T)]).tolist()
        [1, 2, 3, 4, 1, 3, 2, 4]
    """
    flat = []
    for part, order in zip(parts, orders, strict=True):
        in_order = part if order is None else part.permute(order)
        flat.append(in_order.reshape(-1))
    return torch.cat(flat)


def _refuse_lazy(module: nn.Module) -> None:
    lazy = [name for name, parameter in module.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ConfigurationError(
            f"{type(module).__name__} has parameters without a shape, such as {lazy[0]}: clients start from one global "
            "model, so pass a batch through lazy layers in __init__ or configure_model"
        )


def _refuse_overlaps(module: nn.Module, named: Sequence[tuple[str, Tensor]]) -> None:
    spans = sorted((p.data_ptr(), p.data_ptr() + p.nbytes, name) for name, p in named if p.numel())
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise ConfigurationError(
                f"{name} and {other} of {type(module).__name__} share memory, but are two parameters (as .data = … "
                "makes them): register the same parameter in both places"
            )


def layers(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield a module's layers in the order of its parameters: each layer's name and number of trainable parameters.

    A layer has the name of the submodule that holds its parameters. A parameter that the module itself holds is a layer
    of its own, under the parameter's name.
    """
    trained = [(name, p.numel()) for name, p in module.named_parameters() if p.requires_grad]
    for layer, parameters in groupby(trained, lambda named: named[0].rpartition(".")[0] or named[0]):
        yield layer, sum(size for _, size in parameters)


def has_changed(vector: Tensor, before: Tensor, writes: int) -> bool:
    """Tell whether a vector differs from its former values in any bit; nan equals nan.

    On a GPU, which would have to be waited for, only if somebody has written to the vector meanwhile.

    Args:
        vector: (P,) the vector.
        before: (P,) its former values.
        writes: number of writes since then, as :attr:`FlatParameters.writes` counts them.
    """
    kind = INTEGERS[vector.element_size()]
    is_watched = vector.device.type == "cpu" or writes != 0
    return is_watched and not torch.equal(vector.detach().view(kind), before.detach().view(kind))


def is_finite(vector: Tensor) -> bool:
    """Tell whether all entries of a vector are finite."""
    low, high = torch.aminmax(vector)  # one pass; nan turns both into nan
    return not math.isnan(float(low * 0 + high * 0))
