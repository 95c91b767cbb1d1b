"""StackedRun: several clients' training in one round, as rules see it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.training.in_lockstep.batches import Part
from fl_lightning.engine.training.in_lockstep.stacked_optimizer import StackedOptimizer


class StackedRun:
    """Several clients' training in one round, as rules with ``stacks = True`` see it at each local step.

    Args:
        runs: the clients' runs, those with most steps first.
        optimizer: steps the clients' parameters, the rows of its ``weights``.
        randomness: whether the clients draw the same random numbers in a step, or different ones.

    Attributes:
        module: the LightningModule that trains; its own parameters stay those of the global model.
        round: the round's number, 1, 2, …
        clients: ids of the clients that take part in the step, one per row.
        anchor: (P,) the global model that all clients start from.
        params: (N, P) the clients' parameters.
        grads: (N, P) the clients' gradients of the current step; writing to the matrix changes the optimizer step. A
            rule may also assign another matrix: the step then uses that matrix itself, not a copy.
        kept: the tensors in :attr:`LocalRun.kept`, with one row per client.
        buffers: the module's buffers by name, with one row per client.
        parts: the batches of the current step.
        logged: name, value and other arguments of what the module logs in a step; None in place of a tensor.
        traced: the tensors among the values.
    """

    def __init__(
        self, runs: Sequence[LocalRun], optimizer: StackedOptimizer, randomness: Literal["same", "different"]
    ) -> None:
        first = runs[0]
        self.module, self.round, self.anchor = first.module, first.round, first.anchor
        self.runs, self.optimizer, self.randomness = runs, optimizer, randomness
        self.params, self.grads = optimizer.weights, optimizer.weights.new_empty(0)
        self.kept = {name: torch.stack([run.kept[name] for run in runs]) for name in first.kept}
        self.buffers: dict[str, Tensor] = {}
        self.parts: list[Part] = []
        self.logged: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = []
        self.traced: list[Tensor] = []
        self._elsewhere = False

    @property
    def clients(self) -> list[int]:
        """Ids of the clients that take part in the step, one per row."""
        return [run.client for run in self.runs[: len(self.params)]]

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Record a value that the module logs in a step, as the value of one client."""
        if isinstance(value, Tensor):
            self.traced.append(value.detach())
            value = None
        self.logged.append((name, value, args, kwargs))

    def hand_out(self, part: Part, tensors: Sequence[Tensor]) -> None:
        """Give each client of a part what it has logged; values logged at other points are dropped.

        Args:
            part: the clients.
            tensors: (n,) the logged tensors, with one row per client.
        """
        left = iter(tensors)
        for name, value, args, kwargs in () if self._elsewhere else self.logged:
            values = next(left).unbind() if value is None else [value] * len(part.rows)
            for row, each in zip(part.rows, values, strict=True):
                self.runs[row].batch_size = part.size
                self.runs[row].log(name, each, *args, **kwargs)
                self.runs[row].batch_size = None

    @contextlib.contextmanager
    def at(self, point: Tensor) -> Iterator[None]:
        """Give the clients other parameters (N, P) inside a ``with`` block; buffers and logs are then as before."""
        params, elsewhere = self.params, self._elsewhere
        buffers = {name: value.clone() for name, value in self.buffers.items()}
        self.params, self._elsewhere = point, True
        try:
            yield
        finally:
            self.params, self._elsewhere = params, elsewhere
            for name, value in buffers.items():
                self.buffers[name].copy_(value)

    def gradient_at(self, point: Tensor, closure: Callable[[], Tensor | None]) -> Tensor:
        """Compute the current batches' gradients (N, P) at other parameters (N, P), with the closure a rule wraps.

        As in :meth:`LocalRun.gradient_at`, the gradients are a new matrix, and ``grads`` afterwards.
        """
        with self.at(point):
            closure()
        return self.grads


class OneOfStack:
    """A run of several clients, as ``loss`` hooks see it: with ``params`` (P,) and ``kept`` of one of the clients."""

    def __init__(self, run: StackedRun, params: Tensor, kept: dict[str, Tensor]) -> None:
        self._run, self.params, self.kept = run, params, kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)
