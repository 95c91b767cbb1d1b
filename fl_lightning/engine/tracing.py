"""Replayed: a function of tensors that is traced once for each form of its inputs, and then replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fl_lightning.engine.seeding import isolated, seed_globals

OFTEN = 50  # calls with inputs of one form after which it is traced: a trace costs as much as hundreds of calls
MOST = 32  # traces that are kept
TOLERANCE = 1e-4  # largest difference between a compiled step and the step, relative to the largest entry
COMPILER: dict[str, Any] = {"fallback_random": True}  # draws the random numbers that the function draws
SAME = (torch.ops.aten.view.default, torch.ops.aten.expand.default, torch.ops.aten.detach.default)

Function = Callable[..., list[Tensor]]


class Replayed:
    """Calls a function of tensors; after many calls with inputs of one form, replays its torch operations instead.

    The replay calls the same operations on the same inputs, without the function's own Python, ``vmap`` and autograd,
    and gives the same bits. Forms whose first replay differs from the function, and functions that use tensors
    beside their inputs, are never replayed. The function's Python must do the same at every call; :meth:`forget` after
    a change.

    Args:
        function: takes tensors, which it may change in place, and returns a list of tensors.
        device: the device whose random numbers the function draws.
        compiled: whether ``torch.compile`` compiles each form at its first call. The results then differ from the
            function's by rounding.
    """

    def __init__(self, function: Function, device: torch.device, compiled: bool = False) -> None:
        self._function, self._device, self._compiled = function, device, compiled
        self._calls: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, Function | None] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Call the function, or replay it."""
        form = tuple((each.shape, each.dtype) for each in inputs)
        graph = self._graphs.get(form)
        if graph is not None:
            return graph(*inputs)
        self._calls[form] += 1
        if self._calls[form] == (1 if self._compiled else OFTEN) and len(self._graphs) < MOST:
            self._graphs[form] = graph = self._traced(inputs)
            if self._compiled and graph is not None:
                return graph(*inputs)
        return self._function(*inputs)

    def forget(self) -> None:
        """Forget all traces."""
        self._graphs.clear()
        self._calls.clear()

    def _traced(self, inputs: Sequence[Tensor]) -> Function | None:
        """Trace the function and compare a replay with a call; None if it cannot be replayed."""
        try:
            with isolated(self._device):
                module = make_fx(self._function)(*map(torch.clone, inputs))
        except Exception:  # whatever Python the function holds: it is called as before
            return None
        if any(node.op == "get_attr" for node in module.graph.nodes):  # a tensor that is not an input
            return None
        graph: Function = _simplified(module).forward
        expected = self._results(self._function, inputs)
        if not all(map(_equal, expected, self._results(graph, inputs))):
            return None
        if self._compiled:
            try:
                compiled: Function = torch.compile(graph, fullgraph=True, dynamic=False, options=COMPILER)
                if all(map(near, expected, self._results(compiled, inputs))):
                    return compiled
                reason = "its results differ"
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
            rank_zero_warn(f"compile_clients: a step runs without compilation, since {reason}")
        return graph

    def _results(self, function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Call a function on copies of the inputs, always with the same random numbers; return results and copies."""
        with isolated(self._device):
            seed_globals(0, self._device)
            copies = [each.clone() for each in inputs]
            return [*function(*copies), *copies]


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))


def near(one: Tensor, other: Tensor) -> bool:
    """Tell whether the largest difference of two tensors, relative to their largest entry, is a rounding error."""
    if one.shape != other.shape or not one.is_floating_point():
        return _equal(one, other)
    one, other = one.nan_to_num().double(), other.nan_to_num().double()
    return not one.numel() or bool((one - other).abs().max() <= TOLERANCE * one.abs().max())


def _simplified(module: fx.GraphModule) -> fx.GraphModule:
    """Leave out operations that only return their input."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in SAME and isinstance(node.args[0], fx.Node):
            before, after = (each.meta.get("val") for each in (node.args[0], node))
            if not isinstance(before, Tensor) or not isinstance(after, Tensor):
                continue
            if before.shape == after.shape and before.stride() == after.stride():
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
    return module
