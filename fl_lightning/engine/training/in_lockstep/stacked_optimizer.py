"""StackedOptimizer: one optimizer for the rows of a stack of clients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from fl_lightning.engine.module.params import FlatParameters
from fl_lightning.engine.rules.work import LocalSettings

ADAM = (adam, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"))
#: Optimizers that treat each entry of a parameter alone, so that one call steps all clients: torch's function for a
#: step, and the states that the function takes after parameters and gradients.
ELEMENTWISE: dict[type[Optimizer], tuple[Callable[..., None], tuple[str, ...]]] = {
    torch.optim.SGD: (sgd, ("momentum_buffer",)),
    torch.optim.Adam: ADAM,
    torch.optim.AdamW: ADAM,
    torch.optim.RMSprop: (rmsprop, ("square_avg", "grad_avg", "momentum_buffer", "step")),
    torch.optim.Adagrad: (adagrad, ("sum", "step")),
}
OPTIONAL = {"momentum_buffer": "momentum", "max_exp_avg_sq": "amsgrad", "grad_avg": "centered"}  # states by setting
IMPLEMENTATIONS = ("foreach", "fused", "capturable", "differentiable")  # settings that change no result


@cache
def _settings_of(function: Callable[..., None]) -> set[str]:
    """Name the settings that torch's function for a step takes, as an optimizer's groups name them."""
    return {*inspect.signature(function).parameters} - {*IMPLEMENTATIONS, "params", "lr"}


@dataclass
class _Group:
    """One parameter group: its columns of the stack, the settings, and of each state one tensor for each of columns."""

    columns: list[slice]
    settings: dict[str, Any]
    states: list[list[Tensor]]
    is_new: bool = True  # whether SGD's momentum has yet to begin, with the whole gradient of the first step


class StackedOptimizer:
    """Steps the rows of a stack of clients as an optimizer steps one client.

    Args:
        like: one client's optimizer, of a class in ``ELEMENTWISE``, which has taken no step.
        flat: the parameters of the module.
        weights: (N, P) the stack.

    Attributes:
        weights: (N, P) the stack.
        rates: the learning rate of each group.
        rates_kept_out: the same as tensors, which a compiled step does not keep.
    """

    def __init__(self, like: Optimizer, flat: FlatParameters, weights: Tensor) -> None:
        self.weights = weights
        self.rates: list[float] = [float(group["lr"]) for group in like.param_groups]
        self.rates_kept_out = [torch.tensor(rate, dtype=torch.float64) for rate in self.rates]
        self._function, states = ELEMENTWISE[type(like)]
        names = _settings_of(self._function)
        place, start = {}, 0
        for parameter in flat.parameters:
            place[id(parameter)] = slice(start, start := start + parameter.numel())
        self._groups = []
        for group in like.param_groups:
            columns: list[slice] = []
            for part in sorted((place[id(p)] for p in group["params"] if id(p) in place), key=lambda part: part.start):
                if columns and columns[-1].stop == part.start:
                    columns[-1] = slice(columns[-1].start, part.stop)
                else:
                    columns.append(part)
            settings = {name: group[name] for name in names & group.keys()} | {"foreach": False}
            if "betas" in group:
                settings["beta1"], settings["beta2"] = group["betas"]
            kept = [name for name in states if name not in OPTIONAL or group[OPTIONAL[name]]]
            made = [[self._first(name, group, part) for part in columns] if name in kept else [] for name in states]
            self._groups.append(_Group(columns, settings, made))

    def _first(self, name: str, group: dict[str, Any], columns: slice) -> Tensor:
        """Make a state of some columns as it is before the first step."""
        if name == "step":
            return torch.zeros((), dtype=torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32)
        return torch.full_like(self.weights[:, columns], group["initial_accumulator_value"] if name == "sum" else 0.0)

    def clip(self, gradients: Tensor, settings: LocalSettings) -> None:
        """Clip each row of gradients (N, P), as ``torch.nn.utils`` clips the gradient of one module."""
        if settings.clip is None:
            return
        if settings.clip_algorithm == "value":
            gradients.clamp_(-settings.clip, settings.clip)
        else:
            parts = [gradients[:, place].norm(dim=1) for group in self._groups for place in group.columns]
            norms = torch.stack(parts, dim=1).norm(dim=1, keepdim=True)
            gradients.mul_((settings.clip / (norms + 1e-6)).clamp(max=1.0))

    def step(self, params: Tensor, gradients: Tensor, rates: Sequence[Any]) -> None:
        """Step all rows.

        Args:
            params: (N, P) the rows that step, those of the stack or the first of them.
            gradients: (N, P) their gradients.
            rates: the learning rate of each group, a number or, where the step is compiled, a tensor.
        """
        for group, rate in zip(self._groups, rates, strict=True):
            settings = group.settings
            if settings.get("dampening") and group.is_new:
                settings, group.is_new = {**settings, "dampening": 0.0}, False
            columns = [(params[:, place], gradients[:, place]) for place in group.columns]
            self._function(*map(list, zip(*columns, strict=True)), *group.states, lr=rate, **settings)

    def narrow(self, width: int) -> None:
        """Keep the states of the first rows only; the others step no more."""
        for group in self._groups:
            group.states = [[each[:width] if each.ndim else each for each in state] for state in group.states]
