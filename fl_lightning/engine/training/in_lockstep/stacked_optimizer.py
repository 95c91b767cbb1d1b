"""StackedOptimizer: one optimizer for the rows of a stack of clients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
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
    """One parameter group: its columns of the stack, its settings, and each state, a tensor for each slice."""

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
        columns_of: dict[int, slice] = {}  # by the parameter's id
        start = 0
        for parameter in flat.parameters:
            end = start + parameter.numel()
            columns_of[id(parameter)] = slice(start, end)
            start = end
        self._groups: list[_Group] = []
        for group in like.param_groups:
            columns = _join([columns_of[id(p)] for p in group["params"] if id(p) in columns_of])
            settings = {name: group[name] for name in names & group.keys()} | {"foreach": False}
            if "betas" in group:
                settings["beta1"], settings["beta2"] = group["betas"]
            first_states = [self._make_state(name, group, columns) for name in states]
            self._groups.append(_Group(columns, settings, first_states))

    def _make_state(self, name: str, group: dict[str, Any], columns: Sequence[slice]) -> list[Tensor]:
        """Make a state as it is before the first step, a tensor for each of the columns; none where it is not kept."""
        if name in OPTIONAL and not group[OPTIONAL[name]]:
            return []
        if name == "step":
            dtype = torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
            return [torch.zeros((), dtype=dtype) for _ in columns]
        first = group["initial_accumulator_value"] if name == "sum" else 0.0
        return [torch.full_like(self.weights[:, place], first) for place in columns]

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
                settings = {**settings, "dampening": 0.0}
                group.is_new = False
            group_params = [params[:, place] for place in group.columns]
            group_gradients = [gradients[:, place] for place in group.columns]
            self._function(group_params, group_gradients, *group.states, lr=rate, **settings)

    def narrow(self, width: int) -> None:
        """Keep the states of the first rows only; the others step no more."""
        for group in self._groups:
            group.states = [_first_rows(state, width) for state in group.states]


def _first_rows(state: Sequence[Tensor], width: int) -> list[Tensor]:
    """Return the first rows of a state's tensors; numbers of steps have no rows."""
    return [tensor[:width] if tensor.ndim else tensor for tensor in state]


def _join(slices: Sequence[slice]) -> list[slice]:
    """Return the columns of some slices in ascending order, and as few slices as can be."""
    joined: list[slice] = []
    for place in sorted(slices, key=attrgetter("start")):
        if joined and joined[-1].stop == place.start:
            joined[-1] = slice(joined[-1].start, place.stop)
        else:
            joined.append(place)
    return joined
