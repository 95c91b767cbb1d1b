"""StackedRun: several clients' training in one round, as rules see it."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.training.in_lockstep.batches import Part
from fl_lightning.engine.training.in_lockstep.stacked_optimizer import StackedOptimizer

_Call = tuple[str, Any, tuple[Any, ...], dict[str, Any]]  # name, value and other arguments of a call of log


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
        anchor: (P,) the global model that all clients start from; (N, P) the clients' own, where rules define ``start``
            or ``local_part``.
        params: (N, P) the clients' parameters.
        grads: (N, P) the clients' gradients of the current step; writing to the matrix changes the optimizer step. A
            rule may also assign another matrix: the step then uses that matrix itself, not a copy.
        kept: the tensors in :attr:`LocalRun.kept`, with one row per client.
        buffers: the module's buffers by name, with one row per client.
        parts: the batches of the current step.
        calls: name, value and other arguments of what the module logs in an evaluation; None in place of a tensor.
        traced: the tensors among the values.
        means: for each evaluation of a step example by example, whether the values of each client are means (n,).
        is_elsewhere: whether a rule asks for gradients at other points.
        logged: for each evaluation of a step and each of its parts the calls, and the tensors (n,) of the n clients.
    """

    def __init__(
        self, runs: Sequence[LocalRun], optimizer: StackedOptimizer, randomness: Literal["same", "different"]
    ) -> None:
        first = runs[0]
        self.module = first.module
        self.round = first.round
        self._anchor = first.anchor
        self.runs = runs
        self.optimizer = optimizer
        self.randomness = randomness
        self.params = optimizer.weights
        self.grads = optimizer.weights.new_empty(0)
        self.kept = {name: torch.stack([run.kept[name] for run in runs]) for name in first.kept}
        self.buffers: dict[str, Tensor] = {}
        self.parts: list[Part] = []
        self.calls: list[_Call] = []
        self.traced: list[Tensor] = []
        self.logged: list[tuple[list[_Call], list[Tensor]]] = []
        self.means: list[Tensor] = []
        self._kept: list[tuple[Part, list[_Call], list[Tensor]]] = []
        self.is_elsewhere = False

    def begin(self, buffers: dict[str, Tensor]) -> None:
        """Begin with the clients' buffers, by name with one row per client."""
        self.buffers = buffers
        self._all_kept = self.kept
        self._all_buffers = buffers
        self._live = len(self.runs)
        # Rows of the stack, of kept tensors and of buffers, each with the values with which its client ended.
        self._ended: list[tuple[Tensor, Tensor]] = []

    def narrow(self, live: int, width: int) -> None:
        """Go on with the first ``live`` clients, as the first of ``width`` rows that step."""
        if live < self._live:
            if width > live:  # the rows step on, though their clients are done
                for stack in (self.optimizer.weights, *self._all_kept.values(), *self._all_buffers.values()):
                    rows = stack[live : self._live]
                    self._ended.append((rows, rows.clone()))
            self._live = live
        if width < len(self.params):
            self.params = self.optimizer.weights[:width]
            self.kept = {name: stack[:width] for name, stack in self._all_kept.items()}
            self.buffers = {name: stack[:width] for name, stack in self._all_buffers.items()}
            self.optimizer.narrow(width)

    def finish(self, losses: Sequence[float], steps: Sequence[int]) -> None:
        """Give each client its mean loss, its number of steps, and its rows of what the stack holds."""
        for rows, values in self._ended:
            rows.copy_(values)
        self.hand_out_logged()
        rate = self.optimizer.rates[0]
        for row, (run, loss, count) in enumerate(zip(self.runs, losses, steps, strict=True)):
            kept = {name: stack[row] for name, stack in self._all_kept.items()}
            buffers = {name.removeprefix("module."): stack[row] for name, stack in self._all_buffers.items()}
            run.finish(loss, [rate] * count, kept, buffers)

    @property
    def anchor(self) -> Tensor:  # noqa: D102  # see the class
        return self.kept.get("anchor", self._anchor)

    @property
    def clients(self) -> list[int]:
        """Ids of the clients that take part in the step, one per row."""
        return [run.client for run in self.runs[: len(self.params)]]

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Record a value that the module logs in a step, as the value of one client."""
        if isinstance(value, Tensor):
            self.traced.append(value.detach())
            value = None
        self.calls.append((name, value, args, kwargs))

    def add_logged(self, tensors: list[Tensor]) -> None:
        """Add the tensors (n,) that n clients have logged in an evaluation, unless it was at other points."""
        if not self.is_elsewhere:
            self.logged.append((self.calls, tensors))

    def keep_logged(self) -> None:
        """Keep what the clients have logged in the present step."""
        for part, (calls, tensors) in zip(itertools.cycle(self.parts), self.logged, strict=False):
            self._kept.append((part, calls, tensors))

    def hand_out_logged(self) -> None:
        """Give each client what it has logged in all steps."""
        numbers = self._read_logged()
        first_calls: dict[str, _Call] = {}
        values: dict[tuple[str, int], list[Any]] = defaultdict(list)  # by name and row
        weights: dict[tuple[str, int], list[float]] = defaultdict(list)
        for part, calls, _ in self._kept:
            for call in calls:
                name, value, _, kwargs = call
                first_calls.setdefault(name, call)
                # In an evaluation example by example, the size that the module gives is that of one example.
                given_size = kwargs.get("batch_size") if part.weights is None else None
                for row, size in zip(part.rows, part.sizes, strict=True):
                    values[name, row].append(next(numbers) if value is None else value)
                    weights[name, row].append(float(given_size or size))
        for name, _, args, kwargs in first_calls.values():
            for row, run in enumerate(self.runs):
                if (name, row) in values:
                    run.log_all(name, values[name, row], weights[name, row], *args, **kwargs)

    def _read_logged(self) -> Iterator[float]:
        """Yield the numbers that clients have logged as tensors; the device is waited for once."""
        tensors = []
        for part, _, logged in self._kept:
            for tensor in logged:
                tensors.append(tensor[: len(part.rows)].flatten().double())
        if tensors:
            yield from torch.cat(tensors).tolist()

    @contextlib.contextmanager
    def at(self, point: Tensor) -> Iterator[None]:
        """Give the clients other parameters (N, P) inside a ``with`` block; buffers and logs are then as before."""
        params = self.params
        was_elsewhere = self.is_elsewhere
        buffers = {name: value.clone() for name, value in self.buffers.items()}
        self.params = point
        self.is_elsewhere = True
        try:
            yield
        finally:
            self.params = params
            self.is_elsewhere = was_elsewhere
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
    """A run of several clients, as ``loss`` hooks see it: ``params`` (P,), ``anchor`` and ``kept`` of one of them."""

    def __init__(self, run: StackedRun, params: Tensor, kept: dict[str, Tensor]) -> None:
        self._run, self.params, self.kept = run, params, kept
        self.anchor = kept.get("anchor", run.anchor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)
