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
    """One client's training in one round: what client hooks read and change.

    Args:
        module: the LightningModule that trains, shared by all clients in turn.
        flat: the module's parameters as one vector.
        client: the client's id.
        round: 1, 2, …
        num_samples: n_k.
        anchor: (P,) the global model.
        rate_factor: a factor on the client's learning rates in this round.

    Attributes:
        client: the client's id.
        round: 1, 2, …
        module: the LightningModule that trains.
        anchor: (P,) the global model.
        num_samples: n_k.
        proximal: the total μ of the proximal terms that rules add to the gradient; it enters ``normalizer``.
        optimizers: this client's optimizers, made anew for it.
        schedules: Lightning's configurations of their learning-rate schedules.
        losses: the training loss of each local step so far, scalars without graph.
        has_gradient: whether a gradient has been computed since the last step; a training_step may return None.
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
        """(P,) the client's parameters, live."""
        return self._flat.vector

    @property
    def grads(self) -> Tensor:
        """(P,) the gradients of the current step, live."""
        return self._flat.gradient

    @property
    def schedulers(self) -> list[Any]:
        """The schedulers of the client's learning rates."""
        return [config.scheduler for config in self.schedules]

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken so far, τ_k."""
        return len(self._step_sizes)

    @property
    def loss(self) -> float:
        """Mean training loss over the local steps so far; nan before the first."""
        return float(torch.stack(self.losses).mean()) if self.losses else float("nan")

    @property
    def metrics(self) -> dict[str, float]:
        """What the module logged, each name with its mean over the local steps."""
        return means(self._logged)

    @property
    def normalizer(self) -> float:
        """‖a_k‖₁: how much gradient the update holds, in units of the learning rate (FedNova, Wang et al., 2020).

        The displacement that this client's step sizes, momentum and proximal terms make of a gradient of 1. τ_k for
        plain SGD, and for optimizers whose step is not linear in the gradients.
        """
        if not self._step_sizes:
            return 0.0
        reached = displacement(self._step_sizes, self.optimizers[0].param_groups[0], self.proximal)
        return reached / self.learning_rate if reached else float(self.num_steps)

    @property
    def learning_rate(self) -> float:
        """η, the client's learning rate in this round; where a scheduler varies it, the one it starts from."""
        group = self.optimizers[0].param_groups[0]
        return float(group.get("initial_lr") or max(self._step_sizes, default=group["lr"]))

    def send(self, name: str, vector: Tensor) -> None:
        """Send a tensor to the server beside the update: it comes in ``cohort.results[k].vectors``."""
        self._vectors[name] = vector.detach().clone()

    def log(self, name: str, value: Any, *_: Any, **__: Any) -> None:
        """Collect what the module's ``self.log`` gives; the round logs the mean over its clients."""
        self._logged.setdefault(name, []).append((kept(value), 1.0))

    @contextlib.contextmanager
    def at(self, point: Tensor) -> Iterator[None]:
        """Put the module at other parameters (P,) for a while, for rules that look elsewhere within a step.

        Parameters and buffers return to what they were, so that BatchNorm statistics are those of one pass; what the
        module logs meanwhile is dropped. Not for use between a forward pass and its backward: autograd watches buffers.
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
        """Compute the present batch's gradient (P,) at other parameters (P,), by the closure that a rule wraps.

        Afterwards ``grads`` hold the same; copy into them what the optimizer is to follow.
        """
        with self.at(point):
            closure()
            return self.grads.clone()

    def result(self, buffers: list[Tensor]) -> ClientResult:
        """Collect what this client sends beside its update."""
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
