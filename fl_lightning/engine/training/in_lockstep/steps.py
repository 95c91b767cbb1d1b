"""StackedTraining: trains several clients at once, one row of a matrix each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from fl_lightning.engine.module.failures import guarded
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.training.in_lockstep.batches import Part
from fl_lightning.engine.training.in_lockstep.stacked_optimizer import ELEMENTWISE, StackedOptimizer
from fl_lightning.engine.training.in_lockstep.stacked_run import StackedRun
from fl_lightning.engine.training.local_training import LocalTraining


def _refuse(*_: Any) -> Any:
    raise TypeError("it uses batch_idx")


class Obstacle(RuntimeError):  # noqa: N818  # not an error of the run: clients then train one after another
    """Says why clients cannot train at once."""


class NoIndex:
    """Stands for ``batch_idx`` where one call serves several steps with different indices: any use is a TypeError."""

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __bool__ = __int__ = __index__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __truediv__ = _refuse
    __floordiv__ = __pow__ = __neg__ = __float__ = __str__ = __repr__ = __format__ = _refuse


class _Step(nn.Module):
    """A module whose forward pass is the client module's training step."""

    def __init__(self, module: LightningModule, takes_index: bool) -> None:
        super().__init__()
        self.module = module
        self._index = (NoIndex(),) if takes_index else ()

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
        self.training, self.module, self.flat = training, training.module, training.flat
        self._step = _Step(self.module, training.takes_index)
        names = {id(parameter): name for name, parameter in self._step.named_parameters()}
        self._names = [names[id(parameter)] for parameter in self.flat.parameters]
        self._run: StackedRun | None = None
        self._logged: list[Any] = []
        self._randomness = "different"
        self._compiled: Callable[..., Any] | None = None
        if compiled:
            self._compiled = torch.compile(self._gradients, fullgraph=True, options={"fallback_random": True})

    @property
    def is_compiled(self) -> bool:
        """Whether the steps of whole groups are compiled."""
        return self._compiled is not None

    def start(self, runs: Sequence[LocalRun], factors: Sequence[Sequence[float]] | None) -> Tensor:
        """Give the runs of a group their rows of a new stack, and their optimizer.

        Args:
            runs: the clients' runs, those with most steps first.
            factors: factors on the learning rates, as :meth:`RoundRates.factors` returns them; None for the module's.

        Returns:
            (N, P) the stack.

        Raises:
            Obstacle: the module's optimizer cannot step several clients.
        """
        weights = runs[0].anchor.expand(len(runs), -1).clone()
        made, schedules = self.training.make_optimizers(runs[0], factors)
        if reason := obstacle(self.module, made[0], schedules):
            raise Obstacle(reason)
        self._optimizer = StackedOptimizer(made[0], self.flat, weights)
        for run, row in zip(runs, weights, strict=True):
            run.place(row, self._optimizer.optimizer)
        return weights

    def train(
        self,
        run: StackedRun,
        steps: Sequence[int],
        batches: Iterable[list[Part]],
        same_draws: bool = False,
    ) -> None:
        """Train the clients of a group.

        Args:
            run: the group's run.
            steps: number of local steps of each client, in descending order.
            batches: the batches of each step, on the device, of the clients that are not done yet.
            same_draws: whether all clients get the random numbers that the first of them would draw alone.
        """
        self._run, self._randomness = run, "same" if same_draws else "different"
        run.buffers = {name: _rows(buffer, len(steps)) for name, buffer in self._step.named_buffers()}
        all_buffers, rates = run.buffers, list[float]()
        width = len(steps)
        for step, run.parts in enumerate(batches):
            if steps[width - 1] <= step:  # some are done
                width = sum(count > step for count in steps)
                self._narrow(run, width)
                run.buffers = {name: buffer[:width] for name, buffer in all_buffers.items()}
            rates.append(self._optimizer.rate)
            self._take_step(run)
        run.buffers, self._run = all_buffers, None
        means = mean_losses(run.losses, len(steps))
        for row, (each, loss, count) in enumerate(zip(run.runs, means, steps, strict=True)):
            each.finish(loss, rates[:count], {name: value[row] for name, value in run.all_kept.items()})

    def _narrow(self, run: StackedRun, width: int) -> None:
        """Keep the first rows of the stack, in the optimizer, too."""
        run.params = run.weights[:width]
        run.kept = {name: value[:width] for name, value in run.all_kept.items()}
        self._optimizer.narrow(width)

    def _take_step(self, run: StackedRun) -> None:
        def evaluate() -> Tensor:
            return self._evaluate(run)

        closure: Callable[[], Any] = evaluate
        for wrap in self.training.closures:  # of rules that say that they take stacks
            closure = guarded(guarded(wrap)(run, closure), wrap, run)
        closure()
        sizes = [run.parts[0].size] * len(run.params)
        for part in run.parts[1:]:
            for row in part.rows.tolist():  # type: ignore[union-attr]  # only a single part has all rows
                sizes[row] = part.size
        run.losses.append((run.step_losses, sizes))
        for hook in self.training.before_step:
            hook(run)
        self._clip(run.grads)
        self._optimizer.step(run.grads)
        for hook in self.training.after_step:
            hook(run)

    def _evaluate(self, run: StackedRun) -> Tensor:
        """Compute the gradients (N, P) and the losses (N,) of the present step at the run's parameters."""
        if run.grads.shape != run.params.shape:
            run.grads = torch.empty_like(run.params)
        if run.parts[0].rows is not None:
            run.step_losses = run.params.new_empty(len(run.params))
        for part in run.parts:
            rows = part.rows
            if rows is None:
                whole = len(run.params) == len(run.weights)
                grads, losses, logged = self._gradients_of(run.params, run.buffers, run.kept, part.batch, whole)
                run.grads, run.step_losses = grads, losses
            else:
                rows = rows.to(run.params.device)
                params = run.params.index_select(0, rows)
                buffers, kept = (
                    {name: value.index_select(0, rows) for name, value in held.items()}
                    for held in (run.buffers, run.kept)
                )
                grads, losses, logged = self._gradients_of(params, buffers, kept, part.batch)
                run.grads.index_copy_(0, rows, grads)
                run.step_losses[rows] = losses
                for name, buffer in buffers.items():
                    run.buffers[name].index_copy_(0, rows, buffer)
            self._hand_out(run, part, logged)
        return run.step_losses

    def _gradients_of(
        self, params: Tensor, buffers: dict[str, Tensor], kept: dict[str, Tensor], batch: Any, whole: bool = False
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Compute gradients (N, P), losses (N,) and logged values of clients with batches of one shape.

        Only the steps of a whole group are compiled: others come in many widths, of which each would be compiled.

        Raises:
            Obstacle: the loss depends on parameters that the step did not get from the module.
        """
        grads, (losses, logged) = self._compute(whole, params, buffers, kept, batch, self._randomness)
        if grads.requires_grad or losses.requires_grad:
            raise Obstacle(
                f"the loss of {type(self.module).__name__} uses parameters from beside its layers, such as a list"
            )
        return grads, losses, logged

    def _compute(self, whole: bool, *inputs: Any) -> Any:
        if whole and self._compiled is not None:
            try:
                return self._compiled(*inputs)
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
                rank_zero_warn(f"compile_clients: steps run uncompiled, since {reason}")
                self._compiled = None
        return self._gradients(*inputs)

    def _gradients(self, params: Tensor, buffers: Any, kept: Any, batch: Any, randomness: str) -> Any:
        return vmap(grad_and_value(self._loss, has_aux=True), randomness=randomness)(params, buffers, kept, batch)

    def _loss(
        self, vector: Tensor, buffers: Mapping[str, Tensor], kept: dict[str, Tensor], batch: Any
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the loss of one client; vmap calls this function once for all clients (see torch.func)."""
        run = self._run
        assert run is not None
        params, all_kept = run.params, run.kept
        run.params, run.kept, run.logged = vector, kept, []
        try:
            named = dict(zip(self._names, self.flat.views(vector), strict=True))
            outputs = functional_call(self._step, {**named, **buffers}, (batch,))
            loss = self.training.loss_of(outputs)
            for hook in self.training.losses:
                loss = hook(run, batch, outputs, loss)
            tensors = [value.detach() for _, value, *_ in run.logged if isinstance(value, Tensor)]
            self._logged[:] = [
                (name, None if isinstance(value, Tensor) else value, args, kwargs)
                for name, value, args, kwargs in run.logged
            ]
            return loss, tensors
        finally:
            run.params, run.kept, run.logged = params, all_kept, None

    def _hand_out(self, run: StackedRun, part: Part, logged: Sequence[Tensor]) -> None:
        """Give each client its rows of the values logged in this step; values logged at other points are dropped."""
        if not self._logged or not run.runs:
            return
        tensors = iter(logged)
        rows = range(len(run.params)) if part.rows is None else part.rows.tolist()
        for name, value, args, kwargs in self._logged:
            values = next(tensors).unbind() if value is None else [value] * len(rows)
            for row, each in zip(rows, values, strict=True):
                run.runs[row].batch_size = part.size
                run.runs[row].log(name, each, *args, **kwargs)
                run.runs[row].batch_size = None

    def _clip(self, gradients: Tensor) -> None:
        """Clip each client's gradient, as ``torch.nn.utils`` clips the gradient of one module."""
        settings = self.training.settings
        if settings.clip is None:
            return
        if settings.clip_algorithm == "value":
            gradients.clamp_(-settings.clip, settings.clip)
        else:
            norms = self._optimizer.norms(gradients)
            gradients.mul_((settings.clip / (norms + 1e-6)).clamp(max=1.0))


def obstacle(module: LightningModule, optimizer: Optimizer, schedules: Sequence[Any]) -> str | None:
    """Say why a client's new optimizer cannot step the rows of a stack; None if it can.

    Hooks of parameters and layers see the gradients of one client, and hooks of an optimizer the optimizer of one.
    """
    name, kind = type(module).__name__, type(optimizer).__name__
    if type(optimizer) not in ELEMENTWISE:
        return f"{kind} is not one of {', '.join(kind.__name__ for kind in ELEMENTWISE)}"
    if schedules:
        return f"{name} has a learning-rate schedule within a round"
    if not _is_fresh(optimizer):
        return f"{name}.configure_optimizers returns an optimizer with a state"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return f"{name}.configure_optimizers returns an optimizer with hooks"
    tensors = [each for p in module.parameters() for each in (p._backward_hooks, p._post_accumulate_grad_hooks)]
    layers = [each for part in module.modules() for each in (part._backward_hooks, part._backward_pre_hooks)]
    if any([*tensors, *layers]):
        return f"{name} has hooks on gradients"
    return None


def _is_fresh(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer has the state that a new one of its class and settings has."""
    new = type(optimizer)([dict(group) for group in optimizer.param_groups])  # type: ignore[call-arg]  # one of ELEMENTWISE
    pairs = [(new.state[each], optimizer.state[each]) for each in {**new.state, **optimizer.state}]
    return all(one.keys() == other.keys() and all(map(_equal, one.values(), other.values())) for one, other in pairs)


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else bool(one == other)


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
