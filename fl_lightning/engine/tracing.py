"""Replayed: a function of tensors that is traced once for each form of its inputs, and then replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fl_lightning.engine.seeding import isolated, seed_globals

OFTEN = 50  # calls with inputs of one form after which it is traced: a trace costs as much as hundreds of calls
MOST = 32  # traces that are kept
SAME = (torch.ops.aten.view.default, torch.ops.aten.expand.default, torch.ops.aten.detach.default)

Function = Callable[..., list[Tensor]]


class Replayed:
    """Calls a function of tensors; once inputs of one form have come often, replays its torch operations instead.

    The replay calls the same operations on the same inputs, without the function's own Python, ``vmap`` and autograd,
    and gives the same bits. Forms whose first replay differs from the function, and functions that use tensors
    beside their inputs, are never replayed. The function's Python must do the same at every call; :meth:`forget` after
    a change.

    Args:
        function: takes tensors, which it may change in place, and returns a list of tensors.
        device: the device whose random numbers the function draws.
    """

    def __init__(self, function: Function, device: torch.device) -> None:
        self._function, self._device = function, device
        self._calls: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, Function | None] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Call the function, or replay it."""
        form = tuple((each.shape, each.dtype) for each in inputs)
        graph = self._graphs.get(form)
        if graph is not None:
            return graph(*inputs)
        self._calls[form] += 1
        if self._calls[form] == OFTEN and len(self._graphs) < MOST:
            self._graphs[form] = self._traced(inputs)
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
        if any(node.op == "get_attr" for node in module.graph.nodes):  # a tensor that is none of the inputs
            return None
        graph: Function = _simplified(module).forward
        results = []
        with isolated(self._device):
            for function in (self._function, graph):
                seed_globals(0, self._device)
                copies = [each.clone() for each in inputs]
                results.append([*function(*copies), *copies])
        return graph if all(map(_equal, *results)) else None


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))


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
