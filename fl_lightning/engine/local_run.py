"""LocalRun: one client's training in one round, as rules see it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.engine.client_optimizers import displacement, make_optimizers, scale_rates
from fl_lightning.engine.cohort import ClientResult
from fl_lightning.engine.logged import kept, means
from fl_lightning.engine.params import FlatParameters, copy_buffers, set_buffers


class LocalRun:
    """One client's training in one round, which client hooks read and change.

    Args:
        module: the LightningModule that trains, shared by all clients in turn.
        flat: the module's parameters as one vector.
        client: the client's id.
        round: the round's number, 1, 2, …
        num_samples: n_k, the client's number of training examples.
        anchor: (P,) the global model that the client starts from.
        rate_factor: factor on the client's learning rates in this round.

    Attributes:
        client: the client's id.
        round: the round's number, 1, 2, …
        module: the LightningModule that trains.
        anchor: (P,) the global model that the client starts from.
        num_samples: n_k, the client's number of training examples.
        proximal: the total μ of the proximal terms that rules add to the gradient, which enters ``normalizer``.
        optimizers: the client's optimizers, made for this run.
        schedules: Lightning's configurations of the optimizers' learning-rate schedules.
        losses: the training loss of each local step so far, scalars without graph.
        has_gradient: whether a gradient has been computed since the last step; there is none while every
            ``training_step`` returns None.
    """

    def __init__(
        self,
        module: LightningModule,
        flat: FlatParameters,
        client: int,
        round: int,
        num_samples: int,
        anchor: Tensor,
        rate_factor: float = 1.0,
    ) -> None:
        self.module, self.client, self.round = module, client, round
        self.num_samples, self.anchor, self.proximal = num_samples, anchor, 0.0
        self.optimizers, self.schedules = make_optimizers(module)
        scale_rates(self.optimizers, self.schedules, rate_factor)
        self.optimizers[0].register_step_post_hook(self._count)
        self.losses: list[Tensor] = []
        self.has_gradient = False
        self._flat = flat
        self._step_sizes: list[float] = []
        self._logged: dict[str, list[tuple[Any, float]]] = {}
        self._vectors: dict[str, Tensor] = {}

    @property
    def params(self) -> Tensor:
        """(P,) the client's live parameters: writing to the vector changes the module."""
        return self._flat.vector

    @property
    def grads(self) -> Tensor:
        """(P,) the live gradients of the current step: writing to the vector changes the optimizer step."""
        return self._flat.gradient

    @property
    def schedulers(self) -> list[Any]:
        """The schedulers of the client's learning rates."""
        return [config.scheduler for config in self.schedules]

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps taken so far, τ_k."""
        return len(self._step_sizes)

    @property
    def loss(self) -> float:
        """Mean training loss over the local steps so far; nan before the first."""
        return float(torch.stack(self.losses).mean()) if self.losses else float("nan")

    @property
    def metrics(self) -> dict[str, float]:
        """The logged metrics, each averaged over the local steps."""
        return means(self._logged)

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

    def send(self, name: str, vector: Tensor) -> None:
        """Send a tensor to the server beside the update; the server reads it as ``cohort.results[k].vectors[name]``."""
        self._vectors[name] = vector.detach().clone()

    def log(self, name: str, value: Any, *_: Any, **__: Any) -> None:
        """Log a metric of this client, as the module's ``self.log`` does; the round logs the mean over its clients."""
        self._logged.setdefault(name, []).append((kept(value), 1.0))

    @contextlib.contextmanager
    def at(self, point: Tensor) -> Iterator[None]:
        """Give the module other parameters (P,) inside a ``with`` block, for rules that evaluate at other points.

        At the end of the block, parameters and buffers are restored, so that BatchNorm statistics count one pass only.
        Metrics that the module logs inside the block are dropped. Do not use the block between a forward pass and its
        backward pass: autograd detects that buffers have changed.
        """
        params, buffers, logged = self.params.clone(), copy_buffers(self.module), self._logged
        self._logged = {}
        try:
            self.params.copy_(point)
            yield
        finally:
            self.params.copy_(params)
            set_buffers(self.module, buffers)
            self._logged = logged

    def gradient_at(self, point: Tensor, closure: Callable[[], Tensor | None]) -> Tensor:
        """Compute the current batch's gradient (P,) at other parameters (P,), with the closure that a rule wraps.

        Afterwards ``grads`` holds this gradient, too; copy the gradient that the optimizer should use into ``grads``.
        """
        with self.at(point):
            closure()
            return self.grads.clone()

    def result(self, buffers: list[Tensor]) -> ClientResult:
        """Collect the values that this client sends beside its update."""
        return ClientResult(
            client=self.client,
            num_samples=self.num_samples,
            num_steps=self.num_steps,
            loss=self.loss,
            normalizer=self.normalizer,
            buffers=buffers,
            metrics=self.metrics,
            learning_rate=self.learning_rate,
            vectors=self._vectors,
        )

    def _count(self, optimizer: Optimizer, *_: Any) -> None:
        if self.has_gradient or not self.module.automatic_optimization:
            self._step_sizes.append(float(optimizer.param_groups[0]["lr"]))
        self.has_gradient = False
