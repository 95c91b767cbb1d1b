"""StackedTraining: trains several clients at once, one row of a matrix each."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.work import Factors
from fl_lightning.engine.training.in_lockstep import obstacles
from fl_lightning.engine.training.in_lockstep.batches import Part, first_tensor, map_tensors, sizes_of
from fl_lightning.engine.training.in_lockstep.stacked_optimizer import StackedOptimizer
from fl_lightning.engine.training.in_lockstep.stacked_run import OneOfStack, StackedRun
from fl_lightning.engine.training.local_training import LocalTraining

FORMS = 16  # how often a fit compiles steps, anew for other numbers of clients and of examples


def _refuse(*_: Any) -> Any:
    raise TypeError("it uses batch_idx")


#: Stands for ``batch_idx`` where one call serves several steps with different indices: any use is a TypeError.
_NO_INDEX = type("NoIndex", (), dict.fromkeys(vars(int).keys() - {"__new__", "__getattribute__"}, _refuse))()


def _guards(entries: Sequence[Any]) -> list[bool]:
    """Say which guards a compiled step checks: not those of torch's and this module's own functions, which stay."""
    ours = ("L['self'].training.flat", "L['self']._names", "L['run'].optimizer._function", "G['__import_torch")

    def stays(name: str) -> bool:
        return name.startswith(ours) or (name.startswith("G['") and not name.startswith("G['__import_"))

    checked = []
    for entry in entries:
        is_about_tensors = entry.guard_type in ("TENSOR_MATCH", "DUPLICATE_INPUT")
        checked.append(is_about_tensors or not stays(entry.orig_guard.name))
    return checked


class _Step(nn.Module):
    """A module whose forward pass is the client module's training step."""

    def __init__(self, module: LightningModule, takes_index: bool) -> None:
        super().__init__()
        self.module = module
        self._index = (_NO_INDEX,) if takes_index else ()

    def forward(self, batch: Any) -> Any:
        return self.module.training_step(batch, *self._index)


class StackedTraining:
    """Trains groups of clients in lock-step: each local step of a group is one call for all its clients.

    The clients' parameters are the rows of a matrix (N, P). ``torch.func.vmap`` takes the gradients of the unmodified
    ``training_step`` over the rows, and one elementwise optimizer steps the matrix. Where clients have batches of
    different shapes, each shape takes a call of its own; clients that are done leave the stack. The results differ
    from those of clients that train one after another by rounding, and by the draws of dropout.

    Args:
        training: trains one client after another, whose settings and hooks are those of the stack.
        compiled: whether ``torch.compile`` compiles the steps that a whole group takes.
    """

    def __init__(self, training: LocalTraining, compiled: bool = False) -> None:
        self.training = training
        self._module_step = _Step(training.module, training.steps.takes_index)
        names = {id(parameter): name for name, parameter in self._module_step.named_parameters()}
        self._names = [names[id(parameter)] for parameter in training.flat.parameters]
        self._compiled: Callable[..., Any] | None = None
        self.compile(compiled)

    @property
    def is_compiled(self) -> bool:
        """Whether steps are compiled."""
        return self._compiled is not None

    def compile(self, wanted: bool = True) -> None:
        """Compile the steps from now on, or do so no more."""
        if not wanted:
            self._compiled = None
            return
        options: dict[str, Any] = {"fallback_random": True}
        arguments: dict[str, Any] = {"fullgraph": True, "dynamic": False, "options": options}
        # Before torch 2.15, fits in one process share the number of times that a step may be compiled anew.
        if {"isolate_recompiles", "recompile_limit"} <= inspect.signature(torch.compile).parameters.keys():
            arguments["isolate_recompiles"] = True
            arguments["recompile_limit"] = FORMS
            options["guard_filter_fn"] = _guards
        self._compiled = torch.compile(self._step, **arguments)

    def _widths(self, count: int) -> list[int]:
        """Return the numbers of rows that compiled steps of ``count`` clients have, in ascending order."""
        return [ceil(count / 4), ceil(count / 2), count]

    def width_of(self, count: int, live: int) -> int:
        """Return the number of rows that step where ``live`` clients of a group do: compiled steps have few widths."""
        if not self.is_compiled:
            return live
        return next(width for width in self._widths(count) if width >= live)

    def start(self, runs: Sequence[LocalRun], factors: Factors) -> StackedOptimizer:
        """Give the runs of a group their rows of a new stack, and their optimizer.

        Args:
            runs: the clients' runs, those with most steps first.
            factors: factors on the learning rates, as :meth:`RoundRates.factors` returns them; None for the module's.

        Raises:
            Obstacle: the module's optimizer cannot step several clients.
        """
        asked = self.training.trainer.asked
        asked.clear()
        made, schedules = self.training.make_optimizers(runs[0], factors)
        obstacles.clear(obstacles.of_optimizer(self.training.module, made[0], schedules, asked))
        optimizer = StackedOptimizer(made[0], self.training.flat, torch.stack([run.anchor for run in runs]))
        for row, run in enumerate(runs):
            run.place(optimizer.weights, row, made)
        return optimizer

    def train(self, run: StackedRun, batches: Iterable[list[Part]]) -> None:
        """Train the clients of a group.

        Args:
            run: the group's run.
            batches: the batches of each step, on the device, of the clients that are not done yet.

        Raises:
            Obstacle: the loss depends on parameters that the step did not get from the module, or is no mean.
        """
        module = self.training.module
        steps = [client_run.work.total_batches for client_run in run.runs]  # in descending order
        run.begin(self._stack_buffers(run.runs))
        losses: list[tuple[Tensor, Sequence[int]]] = []
        for run.parts in batches:
            sizes = sizes_of(run.parts)
            live = len(sizes)
            width = len(first_tensor(run.parts[0].batch)) if len(run.parts) == 1 else live
            run.narrow(live, width)
            step_losses = self._take_step(run)
            run.keep_logged()
            if step_losses is not None:
                obstacles.clear(obstacles.of_loss(module, run.params, step_losses))
                losses.append((step_losses[:live], sizes))
            obstacles.clear(obstacles.of_means(module, [are_means[:live] for are_means in run.means]))
        run.finish(mean_losses(losses, len(steps)), steps)

    def _stack_buffers(self, runs: Sequence[LocalRun]) -> dict[str, Tensor]:
        """Return the buffers that clients start from, by name, with one row for each client."""
        buffers = {}
        for name, buffer in self._module_step.named_buffers():
            buffers[name] = buffer.detach().expand(len(runs), *buffer.shape).clone()
        for row, run in enumerate(runs):
            for name, value in run.named_start_buffers():
                if value is not None and f"module.{name}" in buffers:
                    buffers[f"module.{name}"][row] = value
        return buffers

    def _take_step(self, run: StackedRun) -> Tensor | None:
        """Step the clients, compiled if that is asked for; return their losses (N,).

        Steps of several parts come in many widths, of which each would be compiled.
        """
        if self._compiled is not None and len(run.parts) == 1 and len(run.params) in self._widths(len(run.runs)):
            try:
                losses: Tensor | None = self._compiled(run, run.optimizer.rates_kept_out)
                return losses
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
                rank_zero_warn(f"compile_clients: steps run uncompiled, since {reason}")
                self._compiled = None
        return self._step(run, run.optimizer.rates)

    def _step(self, run: StackedRun, rates: Sequence[Any]) -> Tensor | None:
        """Step the clients with some learning rates; return their losses (N,)."""
        run.logged = []
        run.means = []
        evaluate = self.training.steps.wrap_closure(run, partial(self._evaluate, run))  # by rules that serve stacks
        losses = evaluate()
        for hook in self.training.steps.before_step_hooks:
            hook(run)
        run.optimizer.clip(run.grads, self.training.settings)
        run.optimizer.step(run.params, run.grads, rates)
        for hook in self.training.steps.after_step_hooks:
            hook(run)
        return losses

    def _evaluate(self, run: StackedRun) -> Tensor:
        """Compute the gradients (N, P) and the losses (N,) of the present step at the run's parameters."""
        if len(run.parts) == 1:
            part = run.parts[0]
            run.grads, losses, logged = self._gradients(
                run, run.params, run.buffers, run.kept, part.batch, part.weights
            )
            run.add_logged(logged)
            return losses
        grads = torch.empty_like(run.params)
        losses = run.params.new_empty(len(run.params))
        for part in run.parts:
            rows = torch.tensor(part.rows, device=grads.device)
            buffers = {name: stack[rows] for name, stack in run.buffers.items()}
            kept = {name: stack[rows] for name, stack in run.kept.items()}
            grads[rows], losses[rows], logged = self._gradients(
                run, run.params[rows], buffers, kept, part.batch, part.weights
            )
            run.add_logged(logged)
            for name, buffer in buffers.items():
                run.buffers[name][rows] = buffer
        run.grads = grads
        return losses

    def _gradients(
        self, run: StackedRun, params: Tensor, buffers: Any, kept: Any, batch: Any, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Compute the gradients (n, P), the losses (n,) and the logged tensors (n,) of the clients of a part.

        Args:
            run: the group's run.
            params: (n, P) the clients' parameters.
            buffers: the module's buffers by name, with one row per client.
            kept: the kept tensors by name, with one row per client.
            batch: the clients' batches, stacked.
            weights: (n, B) the weight of each example; None if batches are evaluated whole.
        """
        if weights is None:
            gradient = grad_and_value(partial(self._loss, run), has_aux=True)
            grads, (losses, logged) = vmap(gradient, randomness=run.randomness)(params, buffers, kept, batch)
            return grads, losses, logged
        gradient = grad_and_value(partial(self._loss_by_example, run), has_aux=True)
        grads, (losses, logged) = vmap(gradient, randomness=run.randomness)(params, buffers, kept, batch, weights)
        if not run.is_elsewhere:
            run.means.append(logged.pop())
        return grads, losses, logged

    def _loss_by_example(
        self, run: StackedRun, vector: Tensor, buffers: Any, kept: Any, batch: Any, weights: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the loss of one client, and what it logs, as means over its examples, of which some count nothing.

        The last tensor says whether all are such means, unless a rule asks for the loss at other points.
        """

        def alone(example: Any) -> tuple[Tensor, list[Tensor]]:
            return self._loss(run, vector, buffers, kept, map_tensors(lambda tensor: tensor[None], example), False)

        losses, logged = vmap(alone, randomness=run.randomness)(batch)
        shares = weights.to(losses)
        means = [(values.flatten() * shares).sum() for values in logged]
        if not run.is_elsewhere:
            # The last example once more, so that neither a sum nor its share of a whole batch passes for a mean.
            longer = map_tensors(lambda tensor: torch.cat([tensor, tensor[-1:]]), batch)
            unchanged = {name: buffer.clone() for name, buffer in buffers.items()}
            whole, others = self._loss(run, vector.detach(), unchanged, kept, longer, False)
            are_means = [_is_mean(whole, losses)]
            for value, values in zip(others, logged, strict=True):
                are_means.append(_is_mean(value, values))
            means.append(torch.stack(are_means).all())
        return (losses * shares).sum(), means

    def _loss(
        self, run: StackedRun, vector: Tensor, buffers: Any, kept: Any, batch: Any, shows_gradient: bool = True
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the loss of one client, and the tensors that it logs.

        vmap calls this function once for all clients (see torch.func): no tensor may stay in the run.
        """
        run.calls = []
        run.traced = []
        named = dict(zip(self._names, self.training.flat.views(vector), strict=True))
        outputs = functional_call(self._module_step, {**named, **buffers}, (batch,))
        loss = self.training.steps.loss_of(outputs, shows_gradient)
        for hook in self.training.steps.loss_hooks:
            loss = hook(OneOfStack(run, vector, kept), batch, outputs, loss)
        tensors = run.traced
        run.traced = []
        return loss, tensors


def _is_mean(whole: Tensor, values: Tensor) -> Tensor:
    """Tell whether a value of a batch is the mean of its examples' values (B,), of which it has the last twice."""
    examples = values.detach().flatten().double()
    mean = (examples.sum() + examples[-1]) / (len(examples) + 1)
    rounding = torch.finfo(whole.dtype).eps ** obstacles.SURE if whole.is_floating_point() else 0.0
    near = (whole.detach().flatten()[0].double() - mean).abs() <= rounding * examples.abs().mean()
    return near | (whole.isnan().any() & mean.isnan())


def mean_losses(losses: Sequence[tuple[Tensor, Sequence[int]]], count: int) -> list[float]:
    """Compute the mean loss of each of ``count`` clients, batches weighted by their examples; nan without a step.

    Args:
        losses: for each step, the losses and the numbers of examples of the clients that were not done yet.
        count: number of clients.
    """
    if not losses:
        return [math.nan] * count
    rows = np.concatenate([range(len(sizes)) for _, sizes in losses])
    shares = np.concatenate([sizes for _, sizes in losses])
    values = torch.cat([step_losses.detach() for step_losses, _ in losses]).double().cpu().numpy()
    sums = np.bincount(rows, values * shares, count)
    totals = np.bincount(rows, shares, count)
    return list((sums / totals).tolist())
