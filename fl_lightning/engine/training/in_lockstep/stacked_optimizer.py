"""StackedOptimizer: one optimizer for the rows of a stack of clients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning.engine.module.params import FlatParameters
from fl_lightning.engine.rules.work import LocalSettings

#: Optimizers that treat each entry of a parameter alone, so that one call steps all clients.
ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)


class StackedOptimizer:
    """Steps the rows of a stack of clients with one optimizer, which is made like the optimizer of one client.

    Args:
        like: one client's optimizer, of a class in ``ELEMENTWISE``, which has taken no step.
        flat: the parameters of the module.
        weights: (N, P) the stack.

    Attributes:
        weights: (N, P) the stack.
        optimizer: the optimizer of the stack, with the groups and settings of ``like``; its parameters are columns of
            the stack.
    """

    def __init__(self, like: Optimizer, flat: FlatParameters, weights: Tensor) -> None:
        self.weights = weights
        place, start = {}, 0
        for parameter in flat.parameters:
            place[id(parameter)] = slice(start, start := start + parameter.numel())
        groups = []
        self._columns: list[tuple[nn.Parameter, slice]] = []
        for group in like.param_groups:
            merged: list[slice] = []
            for part in sorted((place[id(p)] for p in group["params"] if id(p) in place), key=lambda part: part.start):
                if merged and merged[-1].stop == part.start:
                    merged[-1] = slice(merged[-1].start, part.stop)
                else:
                    merged.append(part)
            columns = [(nn.Parameter(weights[:, part]), part) for part in merged]
            groups.append({**group, "params": [parameter for parameter, _ in columns], "foreach": False})
            self._columns += columns
        self.optimizer = type(like)(groups)  # type: ignore[call-arg]  # those of ELEMENTWISE take the groups alone

    @property
    def rate(self) -> float:
        """The learning rate of the first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def clip(self, gradients: Tensor, settings: LocalSettings) -> None:
        """Clip each row of gradients (N, P), as ``torch.nn.utils`` clips the gradient of one module."""
        if settings.clip is None:
            return
        if settings.clip_algorithm == "value":
            gradients.clamp_(-settings.clip, settings.clip)
        else:
            parts = [gradients[:, place].norm(dim=1) for _, place in self._columns]
            norms = torch.stack(parts, dim=1).norm(dim=1, keepdim=True)
            gradients.mul_((settings.clip / (norms + 1e-6)).clamp(max=1.0))

    def step(self, gradients: Tensor) -> None:
        """Step all rows by gradients (N, P)."""
        for parameter, place in self._columns:
            parameter.grad = gradients[:, place]
        self.optimizer.step()

    def narrow(self, width: int) -> None:
        """Keep the first rows only; the others step no more."""
        for parameter, _ in self._columns:
            height = len(parameter)
            parameter.grad, parameter.data = None, parameter.data[:width]
            state = self.optimizer.state[parameter]
            for name, value in state.items():
                if isinstance(value, Tensor) and value.ndim and len(value) == height:
                    state[name] = value[:width]
