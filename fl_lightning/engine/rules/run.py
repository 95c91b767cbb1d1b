"""LocalRun: one client's training in one round, as rules see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.module.logged import MetricLog
from fl_lightning.engine.module.params import FlatParameters
from fl_lightning.engine.module.state import Buffers, ModuleState
from fl_lightning.engine.rules.work import Work
from fl_lightning.engine.updates.cohort import ClientResult


class LocalRun:
    """One client's training in one round, which client hooks read and change.

    Args:
        module: the LightningModule that trains, shared by all clients in turn.
        flat: the module's parameters as one vector.
        state: the rest of the global module: buffers, frozen parameters, training modes and other attributes.
        data: the clients' data.
        client: the client's id.
        round: the round's number, 1, 2, …
        anchor: (P,) the model that the client starts from.
        work: the client's number of epochs or steps in this round, and its batches.

    Attributes:
        client: the client's id.
        round: the round's number, 1, 2, …
        module: the LightningModule that trains.
        anchor: (P,) the model that the client starts from: the global model, unless a rule defines ``start`` or
            ``local_part``.
        start_buffers: the buffers that the client starts from, if a rule defines ``start`` or ``local_part``.
        num_samples: n_k, the client's number of training examples.
        work: the client's number of epochs or steps in this round, and its batches.
        epoch: the number of the local epoch, 0, 1, …
        global_step: number of steps of all optimizers so far, as the Trainer counts them.
        is_last_batch: whether the current batch is the last of its epoch.
        should_stop: whether the client stops after the current batch; the module may set this to True.
        proximal: the total μ of the proximal terms that rules add to the gradient, which enters ``normalizer``.
        optimizers: the client's optimizers, made for this run; empty while the module makes them.
        schedules: Lightning's configurations of the optimizers' learning-rate schedules.
        losses: the training loss of each batch so far, scalar tensors without an autograd graph.
        batch_size: number of examples in the current batch; None outside of a batch.
        kept: tensors that rules keep for the client during its training, by name; where a group of clients trains at
            once, each tensor has one row per client.
        stays: tensors that stay with the client after the round (:meth:`FederatedCallback.keep`), by the rule's
            ``state_key`` and name.
        upload_bytes: bytes of the update that the client sends, which an ``upload`` hook may set; None for those of the
            parameters.
        has_gradient: whether a gradient has been computed since the last step; there is none while every
            ``training_step`` returns None.
        backward: back-propagates a loss, as the module's ``manual_backward`` does.
        lightning_optimizers: the optimizers as a module with manual optimization sees them; empty for other modules.
    """

    # What most clients of a group lack has no object of its own: Python's garbage collector passes over all of them.
    optimizers: Sequence[Optimizer] = ()
    schedules: Sequence[LRSchedulerConfig] = ()
    lightning_optimizers: Sequence[Any] = ()
    start_buffers: Buffers | None = None
    upload_bytes: int | None = None
    _named_buffers: Mapping[str, Tensor] | None = None  # of a row, when it has trained
    _stack: Tensor | None = None  # (N, P), of which the client has a row
    _row = 0

    def __init__(
        self,
        module: LightningModule,
        flat: FlatParameters,
        state: ModuleState,
        data: FederatedData,
        client: int,
        round: int,
        anchor: Tensor,
        work: Work,
    ) -> None:
        self.module = module
        self.client = client
        self.round = round
        self.anchor = anchor
        self.work = work
        self.num_samples = data.size_of(client)
        self.proximal = 0.0
        self.epoch = 0
        self.global_step = 0
        self.is_last_batch = False
        self.should_stop = False
        self.has_gradient = False
        self.losses: list[Tensor] = []
        self.batch_size: int | None = None
        self.kept: dict[str, Tensor] = {}
        self.stays: dict[tuple[str, str], Tensor] = {}
        self.backward: Callable[..., None] = Tensor.backward
        self._flat = flat
        self._state = state
        self._data = data
        self._in_loss = False
        self._loss = math.nan  # of a row, when it has trained
        self._batch_sizes: list[int] = []
        self._step_sizes: list[float] = []
        self._logged = MetricLog()
        self._vectors: dict[str, Tensor] = {}

    @property
    def sizes(self) -> Tensor:
        """(N,) numbers of training examples of all clients."""
        return self._data.sizes

    @property
    def num_shared(self) -> int:
        """Number of the P parameters that do not stay with the client."""
        return len(self.anchor) - len(self._flat.local)

    @property
    def shared(self) -> Tensor:
        """(num_shared,) the places in (P,) vectors of the parameters that do not stay with the client, on the CPU."""
        return torch.ones(len(self.anchor)).index_fill_(0, self._flat.local, 0).nonzero().flatten()

    def batches(self, order: torch.Generator) -> Iterable[Any]:
        """Return one epoch of the client's batches in an order that a generator draws, before transfer hooks."""
        return self._data.client_batches(self.client, order)

    def held_out(self) -> Iterable[Any]:
        """Return the batches of examples that the client keeps back from training, before transfer hooks."""
        return self._data.held_out_batches(self.client)

    @property
    def params(self) -> Tensor:
        """(P,) the client's live parameters: writing to the vector changes the module.

        Inside the ``loss`` hook, a new vector whose gradients reach the parameters, and which is for reading only.
        """
        if self._stack is not None:
            return self._stack[self._row]
        return self._flat.join(self._flat.parameters) if self._in_loss else self._flat.vector

    @property
    def grads(self) -> Tensor:
        """(P,) the live gradients of the current step: writing to the vector changes the optimizer step.

        A rule may also assign another vector (P,): the optimizer step then uses that vector itself, not a copy.

        Raises:
            RuntimeError: the client is a row of a stack, whose gradients are those of all its clients.
        """
        if self._stack is not None:
            raise RuntimeError("a client of a stack has no gradient of its own")
        return self._flat.gradient

    @grads.setter
    def grads(self, gradient: Tensor) -> None:
        self._flat.set_gradient(gradient)

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps taken so far, τ_k."""
        return len(self._step_sizes)

    @property
    def loss(self) -> float:
        """Mean training loss so far, each batch weighted by its number of examples; nan before the first batch."""
        return float(self.mean_loss) if self._stack is None else self._loss

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics logged so far, each reduced over the local steps."""
        return self._logged.collect()

    @property
    def normalizer(self) -> float:
        """‖a_k‖₁, the total weight of the client's gradients in its update (FedNova, Wang et al., 2020).

        Computed as the displacement under a constant gradient of 1, with the client's step sizes, momentum and proximal
        terms, divided by the learning rate: τ_k for plain SGD at a constant rate. Adaptive optimizers count as SGD.
        """
        if not self._step_sizes:
            return 0.0
        reached = displacement(self._step_sizes, self.optimizers[0].param_groups[0], self.proximal)
        return reached / self.learning_rate if reached else float(self.num_steps)

    @property
    def learning_rate(self) -> float:
        """η_k, the client's learning rate in this round: its scheduler's initial rate, else its largest step size."""
        group = self.optimizers[0].param_groups[0]
        return float(group.get("initial_lr") or max(self._step_sizes, default=group["lr"]))

    def place(self, stack: Tensor, row: int, optimizers: Sequence[Optimizer]) -> None:
        """Give the client a row of a stack (N, P) in place of the module's parameters, and the stack's optimizers."""
        self._stack, self._row, self.optimizers = stack, row, optimizers

    def finish(self, loss: float, rates: list[float], kept: dict[str, Tensor], buffers: dict[str, Tensor]) -> None:
        """Record what a stack knows of the client.

        Args:
            loss: the mean training loss.
            rates: the learning rate of each step.
            kept: the client's rows of the kept tensors.
            buffers: the client's rows of the module's buffers, by name.
        """
        self._loss, self.kept, self._named_buffers = loss, kept, buffers or None
        self._step_sizes, self.global_step = rates, len(rates)

    def send(self, name: str, vector: Tensor) -> None:
        """Send a tensor to the server beside the update; the server reads it as ``cohort.results[k].vectors[name]``."""
        self._vectors[name] = vector.detach().clone()

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log a metric of this client, with the arguments of ``LightningModule.log``.

        The values of the local steps are reduced by ``reduce_fx``. The round's metric is the mean over its clients,
        weighted by n_k, or with such a ``reduce_fx`` their sum, minimum or maximum.
        """
        self._logged.add(name, value, *args, in_batch=self.batch_size, **kwargs)

    def log_all(self, name: str, values: list[Any], weights: list[float], *args: Any, **kwargs: Any) -> None:
        """Log the values of several batches at once, with their weights in a mean; see :meth:`log`."""
        self._logged.add(name, values[0], *args, **kwargs | dict.fromkeys(("batch_size", "in_batch"), int(weights[0])))
        self._logged.extend(name, values[1:], weights[1:])

    def add_loss(self, loss: Tensor | None) -> None:
        """Add the training loss of the current batch, if there is one."""
        if loss is not None:
            self.losses.append(loss.detach())
            self._batch_sizes.append(self.batch_size or 1)

    @contextmanager
    def in_loss(self) -> Iterator[None]:
        """Let :attr:`params` have a gradient inside a ``with`` block, in which the ``loss`` hooks are called."""
        self._in_loss = True
        try:
            yield
        finally:
            self._in_loss = False

    def at(self, point: Tensor) -> AbstractContextManager[None]:
        """Give the module other parameters (P,) inside a ``with`` block, for rules that evaluate at other points.

        At the end of the block, parameters, frozen parameters and buffers are restored, so that BatchNorm statistics
        count one pass only. Metrics that the module logs inside the block are dropped. Do not use the block between a
        forward pass and its backward pass: autograd detects that buffers have changed.
        """
        return self._holding(point.clone())

    @contextmanager
    def _holding(self, point: Tensor) -> Iterator[None]:
        """Let the module use a vector (P,) itself, not a copy, as its parameters inside a ``with`` block."""
        buffers, logged = self._state.read(), self._logged
        self._logged = MetricLog()
        try:
            with self._flat.at(point):
                yield
        finally:
            self._logged = logged
            self._state.write(buffers)

    def gradient_at(self, point: Tensor, closure: Callable[[], Tensor | None]) -> Tensor:
        """Compute the current batch's gradient (P,) at other parameters (P,), with the closure that a rule wraps.

        The module may change ``point`` meanwhile: pass a new vector, or a copy. The returned gradient is a new vector;
        gradients returned earlier do not change. Afterwards ``grads`` is the returned gradient: set ``grads`` to the
        gradient that the optimizer is to use.
        """
        with self._holding(point.contiguous()):
            self._flat.clear_gradient()
            closure()
            return self._flat.gradient

    @property
    def mean_loss(self) -> Tensor:
        """:attr:`loss` as a scalar tensor, without waiting for the device."""
        if not self.losses:
            return self.anchor.new_full((), math.nan)
        sizes = self._batch_sizes
        if sizes.count(sizes[0]) == len(sizes):
            return torch.stack(self.losses).mean()
        losses_by_size: dict[int, list[Tensor]] = {}
        for loss, size in zip(self.losses, sizes, strict=True):
            losses_by_size.setdefault(size, []).append(loss)
        totals = [torch.stack(losses).sum() * size for size, losses in losses_by_size.items()]
        return torch.stack(totals).sum() / sum(sizes)

    @property
    def buffers(self) -> Buffers:
        """The client's buffers and frozen parameters."""
        if self._stack is None:
            return self._state.read()
        return self._state.of(self._named_buffers) if self._named_buffers else self._state.buffers

    def named_start_buffers(self) -> Iterable[tuple[str, Tensor | None]]:
        """Return names and values of the buffers that the client starts from, if a rule changes what it starts from."""
        return () if self.start_buffers is None else zip(self._state.names, self.start_buffers, strict=True)

    def result(self, loss_scale: tuple[float, int] | None = None) -> ClientResult:
        """Collect the values that this client sends beside its update; of a row, with its mean training loss.

        Args:
            loss_scale: scale and growth tracker of the client's GradScaler; None without a GradScaler.
        """
        return ClientResult(
            client=self.client,
            num_samples=self.num_samples,
            num_steps=self.num_steps,
            loss=self._loss,
            normalizer=self.normalizer,
            buffers=list(self.buffers),
            metrics=self.metrics,
            reductions=self._logged.reductions(),
            shown=self._logged.shown(),
            loss_scale=loss_scale,
            learning_rate=self.learning_rate,
            vectors=self._vectors,
            stays=self.stays,
            upload_bytes=self.upload_bytes,
        )

    def count_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Count a step of the first optimizer, if it has a gradient."""
        if self.has_gradient or not self.module.automatic_optimization:
            self._step_sizes.append(float(optimizer.param_groups[0]["lr"]))
        self.has_gradient = False


def displacement(step_sizes: Sequence[float], group: Mapping[str, Any], proximal: float) -> float:
    """Compute the distance that SGD moves a parameter under a constant gradient of 1 and a proximal term.

    Args:
        step_sizes: learning rates, one per step.
        group: the optimizer's settings, of which momentum, dampening and nesterov are used.
        proximal: μ of the proximal term μ/2 ‖w - w_start‖².

    Example:
        >>> from fl_lightning.engine.rules.run import displacement
        >>> displacement([0.5, 0.5], {}, proximal=0.0)  # 0.5 + 0.5
        1.0
        >>> displacement([0.5, 0.5], {"momentum": 0.5}, proximal=0.0)  # velocities 1 and 1.5
        1.25
        >>> displacement([0.5, 0.5], {}, proximal=1.0)  # 0.5 · 1 + 0.5 · (1 - 0.5)
        0.75
    """
    momentum, dampening = group.get("momentum", 0.0), group.get("dampening", 0.0)
    reached, velocity = 0.0, None
    for size in step_sizes:
        gradient = 1.0 - proximal * reached
        velocity = gradient if velocity is None else momentum * velocity + (1 - dampening) * gradient
        direction = gradient + momentum * velocity if group.get("nesterov") else velocity
        reached += size * (direction if momentum else gradient)
    return reached
