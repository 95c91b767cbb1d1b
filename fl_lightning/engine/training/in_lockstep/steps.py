"""StackedTraining: trains several clients at once, one row of a matrix each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.utils.rnn import pad_sequence

from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.training.in_lockstep import obstacles
from fl_lightning.engine.training.in_lockstep.batches import Part
from fl_lightning.engine.training.in_lockstep.stacked_optimizer import StackedOptimizer
from fl_lightning.engine.training.in_lockstep.stacked_run import OneOfStack, StackedRun
from fl_lightning.engine.training.local_training import LocalTraining


def _refuse(*_: Any) -> Any:
    raise TypeError("it uses batch_idx")


#: Stands for ``batch_idx`` where one call serves several steps with different indices: any use is a TypeError.
_NO_INDEX = type("NoIndex", (), dict.fromkeys(vars(int).keys() - {"__new__", "__getattribute__"}, _refuse))()


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
        self._step = _Step(training.module, training.takes_index)
        names = {id(parameter): name for name, parameter in self._step.named_parameters()}
        self._names = [names[id(parameter)] for parameter in training.flat.parameters]
        self._compiled: Callable[..., Any] | None = None
        if compiled:
            self._compiled = torch.compile(self._gradients, fullgraph=True, options={"fallback_random": True})

    @property
    def is_compiled(self) -> bool:
        """Whether the steps of whole groups are compiled."""
        return self._compiled is not None

    def start(self, runs: Sequence[LocalRun], factors: Sequence[Sequence[float]] | None) -> StackedOptimizer:
        """Give the runs of a group their rows of a new stack, and their optimizer.

        Args:
            runs: the clients' runs, those with most steps first.
            factors: factors on the learning rates, as :meth:`RoundRates.factors` returns them; None for the module's.

        Raises:
            Obstacle: the module's optimizer cannot step several clients.
        """
        made, schedules = self.training.make_optimizers(runs[0], factors)
        obstacles.clear(obstacles.of_optimizer(self.training.module, made[0], schedules))
        optimizer = StackedOptimizer(made[0], self.training.flat, runs[0].anchor.expand(len(runs), -1).clone())
        stepped_by = [optimizer.optimizer]
        for run, row in zip(runs, optimizer.weights, strict=True):
            run.place(row, stepped_by)
        return optimizer

    def train(self, run: StackedRun, batches: Iterable[list[Part]]) -> None:
        """Train the clients of a group.

        Args:
            run: the group's run.
            batches: the batches of each step, on the device, of the clients that are not done yet.
        """
        steps = [each.work.total_batches for each in run.runs]  # in descending order
        run.buffers = {name: _rows(buffer, len(steps)) for name, buffer in self._step.named_buffers()}
        kept, buffers, losses, rates = run.kept, run.buffers, list[tuple[Tensor, list[int]]](), list[float]()
        for step, run.parts in enumerate(batches):
            if steps[len(run.params) - 1] <= step:  # some are done
                width = sum(count > step for count in steps)
                run.params = run.optimizer.weights[:width]
                run.kept, run.buffers = ({name: each[:width] for name, each in all.items()} for all in (kept, buffers))
                run.optimizer.narrow(width)
            rates.append(run.optimizer.rate)
            if (found := self._take_step(run)) is not None:
                sizes = {row: part.size for part in run.parts for row in part.rows}
                losses.append((found, [sizes[row] for row in sorted(sizes)]))
        means = mean_losses(losses, len(steps))
        for row, (each, loss, count) in enumerate(zip(run.runs, means, steps, strict=True)):
            mine = {name.removeprefix("module."): value[row] for name, value in buffers.items()}
            each.finish(loss, rates[:count], {name: value[row] for name, value in kept.items()}, mine)

    def _take_step(self, run: StackedRun) -> Tensor | None:
        """Step the clients; return their losses (N,)."""
        losses = self.training.wrapped(run, partial(self._evaluate, run))()  # by rules that say that they take stacks
        for hook in self.training.before_step:
            hook(run)
        run.optimizer.clip(run.grads, self.training.settings)
        run.optimizer.step(run.grads)
        for hook in self.training.after_step:
            hook(run)
        return losses

    def _evaluate(self, run: StackedRun) -> Tensor:
        """Compute the gradients (N, P) and the losses (N,) of the present step at the run's parameters."""
        if len(run.parts) == 1:
            run.grads, losses = self._evaluate_part(run, run.parts[0], run.params, run.buffers, run.kept)
            return losses
        grads, losses = torch.empty_like(run.params), run.params.new_empty(len(run.params))
        for part in run.parts:
            rows = torch.tensor(part.rows, device=grads.device)
            buffers, kept = ({name: each[rows] for name, each in all.items()} for all in (run.buffers, run.kept))
            grads[rows], losses[rows] = self._evaluate_part(run, part, run.params[rows], buffers, kept)
            for name, buffer in buffers.items():
                run.buffers[name][rows] = buffer
        run.grads = grads
        return losses

    def _evaluate_part(
        self, run: StackedRun, part: Part, params: Tensor, buffers: dict[str, Tensor], kept: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Compute gradients (n, P) and losses (n,) of clients with batches of one shape, and hand out what is logged.

        Raises:
            Obstacle: the loss depends on parameters that the step did not get from the module.
        """
        grads, (losses, logged) = self._compute(run, params, buffers, kept, part.batch)
        obstacles.clear(obstacles.of_loss(self.training.module, grads, losses))
        run.hand_out(part, logged)
        return grads, losses

    def _compute(self, run: StackedRun, params: Tensor, *others: Any) -> Any:
        """Compute gradients, losses and logged tensors, compiled for a whole group.

        Other steps come in many widths, of which each would be compiled.
        """
        if self._compiled is not None and len(params) == len(run.runs):
            try:
                return self._compiled(run, params, *others)
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
                rank_zero_warn(f"compile_clients: steps run uncompiled, since {reason}")
                self._compiled = None
        return self._gradients(run, params, *others)

    def _gradients(self, run: StackedRun, *inputs: Any) -> Any:
        return vmap(grad_and_value(partial(self._loss, run), has_aux=True), randomness=run.randomness)(*inputs)

    def _loss(
        self, run: StackedRun, vector: Tensor, buffers: dict[str, Tensor], kept: dict[str, Tensor], batch: Any
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the loss of one client, and the tensors that it logs.

        vmap calls this function once for all clients (see torch.func): no tensor may stay in the run.
        """
        run.logged, run.traced = [], []
        named = dict(zip(self._names, self.training.flat.views(vector), strict=True))
        outputs = functional_call(self._step, {**named, **buffers}, (batch,))
        loss = self.training.loss_of(outputs)
        for hook in self.training.losses:
            loss = hook(OneOfStack(run, vector, kept), batch, outputs, loss)
        tensors, run.traced = run.traced, []
        return loss, tensors


def _rows(buffer: Tensor, count: int) -> Tensor:
    return buffer.detach().expand(count, *buffer.shape).clone()


def mean_losses(losses: Sequence[tuple[Tensor, list[int]]], count: int) -> list[float]:
    """Compute the mean loss of each of ``count`` clients, batches weighted by their examples; nan without a step.

    Args:
        losses: for each step, the losses and the numbers of examples of the clients that were not done yet.
        count: number of clients.
    """
    if not losses:
        return [math.nan] * count
    values = pad_sequence([each.detach() for each, _ in losses], batch_first=True).cpu().double()  # (steps, count)
    shares = torch.tensor([sizes + [0] * (count - len(sizes)) for _, sizes in losses], dtype=torch.float64)
    return list(((values * shares).sum(0) / shares.sum(0)).tolist())
