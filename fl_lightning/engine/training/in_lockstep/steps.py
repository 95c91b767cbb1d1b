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
from fl_lightning.engine.training.in_lockstep.batches import Part, first_tensor, mapped, sizes_of
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

    return [
        each.guard_type in ("TENSOR_MATCH", "DUPLICATE_INPUT") or not stays(each.orig_guard.name) for each in entries
    ]


class _Step(nn.Module):
    """A module whose forward pass is the client module's training step."""

    def __init__(self, module: LightningModule, takes_index: bool) -> None:
        super().__init__()
        self.module, self._index = module, (_NO_INDEX,) if takes_index else ()

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
        # Before torch 2.15, fits in one process share the number of times that a step may be compiled anew.
        own = {"isolate_recompiles", "recompile_limit"} <= inspect.signature(torch.compile).parameters.keys()
        given: Any = {"isolate_recompiles": True, "recompile_limit": FORMS} if own else {}
        options = {"fallback_random": True} | ({"guard_filter_fn": _guards} if own else {})
        given |= {"fullgraph": True, "dynamic": False, "options": options}
        self._compiled = torch.compile(self._step, **given) if wanted else None

    def _widths(self, count: int) -> list[int]:
        return [ceil(count / each) for each in (4, 2, 1)]

    def form(self, count: int, live: int) -> int:
        """Return the number of rows that step where ``live`` clients of a group do: compiled steps have few widths."""
        return next(width for width in self._widths(count) if width >= live) if self.is_compiled else live

    def start(self, runs: Sequence[LocalRun], factors: Factors) -> StackedOptimizer:
        """Give the runs of a group their rows of a new stack, and their optimizer.

        Args:
            runs: the clients' runs, those with most steps first.
            factors: factors on the learning rates, as :meth:`RoundRates.factors` returns them; None for the module's.

        Raises:
            Obstacle: the module's optimizer cannot step several clients.
        """
        made, schedules = self.training.make_optimizers(runs[0], factors)
        obstacles.clear(obstacles.of_optimizer(self.training.module, made[0], schedules))
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
        steps = [each.work.total_batches for each in run.runs]  # in descending order
        named = self._module_step.named_buffers()
        buffers = {name: buffer.detach().expand(len(steps), *buffer.shape).clone() for name, buffer in named}
        for row, each in enumerate(run.runs):
            for name, value in each.named_start_buffers():
                if value is not None and f"module.{name}" in buffers:
                    buffers[f"module.{name}"][row] = value
        run.begin(buffers)
        losses = list[tuple[Tensor, Sequence[int]]]()
        for run.parts in batches:
            sizes = sizes_of(run.parts)
            run.narrow(len(sizes), len(first_tensor(run.parts[0].batch)) if len(run.parts) == 1 else len(sizes))
            found = self._take_step(run)
            run.keep_logged()
            if found is not None:
                obstacles.clear(obstacles.of_loss(self.training.module, run.params, found))
                losses.append((found[: len(sizes)], sizes))
            obstacles.clear(obstacles.of_means(self.training.module, [each[: len(sizes)] for each in run.means]))
        run.finish(mean_losses(losses, len(steps)), steps)

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
        run.logged, run.means = [], []
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
            inputs = (run.params, run.buffers, run.kept, part.batch, part.weights)
            run.grads, (whole, logged) = self._gradients(run, *inputs)
            run.add_logged(logged)
            return whole  # type: ignore[no-any-return]  # a tensor
        grads, losses = torch.empty_like(run.params), run.params.new_empty(len(run.params))
        for part in run.parts:
            rows = torch.tensor(part.rows, device=grads.device)
            buffers, kept = ({name: each[rows] for name, each in all.items()} for all in (run.buffers, run.kept))
            inputs = (run.params[rows], buffers, kept, part.batch, part.weights)
            grads[rows], (losses[rows], logged) = self._gradients(run, *inputs)
            run.add_logged(logged)
            for name, buffer in buffers.items():
                run.buffers[name][rows] = buffer
        run.grads = grads
        return losses

    def _gradients(self, run: StackedRun, *inputs: Any) -> Any:
        by_example = inputs[-1] is not None
        loss, given = (self._loss_by_example, inputs) if by_example else (self._loss, inputs[:-1])
        found = vmap(grad_and_value(partial(loss, run), has_aux=True), randomness=run.randomness)(*given)
        if by_example and not run.is_elsewhere:
            run.means.append(found[1][1].pop())
        return found

    def _loss_by_example(
        self, run: StackedRun, vector: Tensor, buffers: Any, kept: Any, batch: Any, weights: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the loss of one client, and what it logs, as means over its examples, of which some count nothing.

        The last tensor says whether all are such means, unless a rule asks for the loss at other points.
        """

        def alone(example: Any) -> tuple[Tensor, list[Tensor]]:
            return self._loss(run, vector, buffers, kept, mapped(lambda tensor: tensor[None], example), False)

        losses, logged = vmap(alone, randomness=run.randomness)(batch)
        shares = weights.to(losses)
        means = [(each.flatten() * shares).sum() for each in logged]
        if not run.is_elsewhere:
            # The last example once more, so that neither a sum nor its share of a whole batch passes for a mean.
            longer = mapped(lambda tensor: torch.cat([tensor, tensor[-1:]]), batch)
            unchanged = {name: buffer.clone() for name, buffer in buffers.items()}
            whole, others = self._loss(run, vector.detach(), unchanged, kept, longer, False)
            compared = zip((whole, *others), (losses, *logged), strict=True)
            means.append(torch.stack([_is_mean(value, values) for value, values in compared]).all())
        return (losses * shares).sum(), means

    def _loss(
        self, run: StackedRun, vector: Tensor, buffers: Any, kept: Any, batch: Any, shows_gradient: bool = True
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the loss of one client, and the tensors that it logs.

        vmap calls this function once for all clients (see torch.func): no tensor may stay in the run.
        """
        run.names, run.traced = [], []
        named = dict(zip(self._names, self.training.flat.views(vector), strict=True))
        outputs = functional_call(self._module_step, {**named, **buffers}, (batch,))
        loss = self.training.steps.loss_of(outputs, shows_gradient)
        for hook in self.training.steps.loss_hooks:
            loss = hook(OneOfStack(run, vector, kept), batch, outputs, loss)
        tensors, run.traced = run.traced, []
        return loss, tensors


def _is_mean(whole: Tensor, values: Tensor) -> Tensor:
    """Tell whether a value of a batch is the mean of its examples' values (B,), of which it has the last twice."""
    each = values.detach().flatten().double()
    mean = (each.sum() + each[-1]) / (len(each) + 1)
    rounding = torch.finfo(whole.dtype).eps ** obstacles.SURE if whole.is_floating_point() else 0.0
    near = (whole.detach().flatten()[0].double() - mean).abs() <= rounding * each.abs().mean()
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
    values = torch.cat([each.detach() for each, _ in losses]).double().cpu().numpy()
    return list((np.bincount(rows, values * shares, count) / np.bincount(rows, shares, count)).tolist())
