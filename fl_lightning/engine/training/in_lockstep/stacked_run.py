"""StackedRun: several clients' training in one round, as rules see it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.training.in_lockstep.batches import Part


class StackedRun:
    """Several clients' training in one round, as rules with ``stacks = True`` see it at each local step.

    Attributes:
        module: the LightningModule that trains; its own parameters stay those of the global model.
        round: the round's number, 1, 2, …
        clients: ids of the clients that take part in the step, one per row.
        anchor: (P,) the global model that all clients start from.
        params: (N, P) the clients' parameters; inside the ``loss`` hook (P,), those of one client.
        grads: (N, P) the clients' gradients of the current step; writing to the matrix changes the optimizer step. A
            rule may also assign another matrix: the step then uses that matrix itself, not a copy.
        kept: the tensors in :attr:`LocalRun.kept`, with one row per client; inside ``loss``, the tensors of one client.
    """

    def __init__(self, runs: Sequence[LocalRun], weights: Tensor) -> None:
        first = runs[0]
        self.module, self.round, self.anchor = first.module, first.round, first.anchor
        self.runs, self.weights = runs, weights
        self.params, self.grads = weights, weights.new_empty(0)
        self.all_kept = {name: torch.stack([run.kept[name] for run in runs]) for name in first.kept}
        self.kept = self.all_kept
        self.buffers: dict[str, Tensor] = {}
        self.parts: list[Part] = []  # the batches of the present step
        self.losses: list[tuple[Tensor, list[int]]] = []  # of each step so far: loss and number of examples by row
        self.step_losses = weights.new_empty(0)
        self.logged: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] | None = None

    @property
    def clients(self) -> list[int]:
        """Ids of the clients that take part in the step, one per row."""
        return [run.client for run in self.runs[: len(self.params)]]

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Record a value that the module logs in a step, as the value of one client."""
        if self.logged is not None:
            self.logged.append((name, value, args, kwargs))

    @contextlib.contextmanager
    def at(self, point: Tensor) -> Iterator[None]:
        """Give the clients other parameters (N, P) inside a ``with`` block; buffers and logs are then as before."""
        params, self.params = self.params, point
        buffers = {name: value.clone() for name, value in self.buffers.items()}
        runs, self.runs = self.runs, ()
        try:
            yield
        finally:
            self.params, self.runs = params, runs
            for name, value in buffers.items():
                self.buffers[name].copy_(value)

    def gradient_at(self, point: Tensor, closure: Callable[[], Tensor | None]) -> Tensor:
        """Compute the current batches' gradients (N, P) at other parameters (N, P), with the closure a rule wraps.

        As in :meth:`LocalRun.gradient_at`, the gradients are a new matrix, and ``grads`` afterwards.
        """
        with self.at(point):
            losses, self.grads = self.step_losses, self.weights.new_empty(0)
            closure()
            self.step_losses = losses
            return self.grads
