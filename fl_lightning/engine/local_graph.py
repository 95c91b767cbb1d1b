"""GraphedTraining: local steps that are captured once as a CUDA graph, and then replayed without Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.optim import SGD
from torchmetrics import Metric, MetricCollection

from fl_lightning.engine.batches import TrainingBatch
from fl_lightning.engine.callback import FederatedCallback, overrides
from fl_lightning.engine.capture import CAPTURES, Step
from fl_lightning.engine.client_optimizers import fixed_settings, sgd_like
from fl_lightning.engine.client_trainer import ClientTrainer
from fl_lightning.engine.local_run import LocalRun
from fl_lightning.engine.local_training import LocalTraining
from fl_lightning.engine.local_work import LocalSettings
from fl_lightning.engine.logged import MetricLog
from fl_lightning.engine.module_state import REGISTRIES, ModuleState, changed
from fl_lightning.engine.params import FlatParameters
from fl_lightning.engine.seeding import host_states, isolated, seed_globals
from fl_lightning.engine.stacked_training import NoIndex
from fl_lightning.engine.tracing import near

OFTEN = 20  # batches of one form after which their step is captured: a capture costs as much as tens of steps
MOST = 16  # captures in a fit


class Obstacle(Exception):  # noqa: N818  # not an error: training goes on without graphs
    """Says why a step cannot be captured."""


class _Records(MetricLog):
    """Keeps the values that a step logs, and the arguments, in place of collecting numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = []

    def add(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Keep a value, and the arguments but for the batch's size."""
        kwargs.pop("in_batch", None)  # of each replay
        value = value.detach().clone() if isinstance(value, Tensor) else value  # the step may change it later
        self.calls.append((name, value, args, kwargs))


@dataclass
class _Graph:
    """A captured step: reads ``inputs``, and writes ``loss``, ``grads`` and the tensors in ``logged``."""

    inputs: Sequence[Tensor]
    loss: Tensor
    grads: Sequence[Tensor | None]  # of all parameters; none where the graph steps the optimizer, too
    logged: Sequence[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]
    replay: Callable[[], Any]


class GraphedTraining(LocalTraining):
    """Trains clients by steps that are captured on the device and replayed, for the same results.

    A graph holds the forward and the backward pass of batches of one form. It also holds clipping and the optimizer's
    step of an SGD whose settings never change; all other optimizers step after the replay, as usual. Batches whose form
    is rare train as usual. After an obstacle, which one line names, all batches train as usual.
    """

    device: torch.device
    _tell: Callable[[str], None]
    _calls: Counter[Hashable]  # batches so far, by form
    _captures = 0
    _begins = _fell = False  # whether the next batch is a client's first; whether an obstacle was found
    _failure = ""  # why the last capture failed
    _plan: Hashable = None  # the settings of an SGD that steps in the graphs
    _twin: SGD | None = None  # this SGD: each client has an optimizer of its own with the same momentum buffers

    def begin(self, tell: Callable[[str], None]) -> None:
        """Begin a fit without graphs; ``tell`` is called with the obstacle, once, if one is found."""
        self.device, self._tell, self._calls = self.flat.vector.device, tell, Counter()
        self._forget()

    def obstacle(self, callbacks: Sequence[FederatedCallback]) -> str | None:
        """Say what forbids graphs, as far as the module, the settings and the rules show; None if nothing does."""
        name = type(self.module).__name__
        if not self.automatic:
            return f"{name} optimizes manually"
        if self.hooks:
            return f"{name} defines {', '.join(self.hooks)}"
        if self.shared_scaler is not None:
            return "precision is 16-mixed"
        if self.settings.accumulate > 1:
            return "accumulate_grad_batches is above 1"
        acting = [type(c).__name__ for c in callbacks if overrides(c, "loss") or overrides(c, "closure")]
        return f"{', '.join(acting)} acts inside a local step" if acting else None

    def start(self, run: LocalRun, factors: Sequence[Sequence[float]] | None = None) -> LocalRun:
        """Make the optimizers of a client's run, whose momentum is in the memory that the graphs know."""
        super().start(run, factors)
        if self._fell:
            return run
        self._begins, optimizer = True, run.optimizers[0]
        constant = factors is None and not run.schedules and not self.before_step and not self.after_step
        plan = fixed_settings(optimizer) if constant else None
        if plan != self._plan:
            self._plan, self._twin = plan, None if plan is None else sgd_like(optimizer)
            self._forget()
        if self._twin is not None and self._twin.state:
            torch._foreach_zero_(self._velocities())
            for parameter, state in self._twin.state.items():
                optimizer.state[parameter] = dict(state)
        return run

    def _velocities(self) -> list[Tensor]:
        return [] if self._twin is None else [state["momentum_buffer"] for state in self._twin.state.values()]

    def _batch(self, run: LocalRun, batch: Any, index: int, stepping: bool) -> Any:
        graph = None if self._fell else self._find(run, batch)
        if graph is None:
            outputs = super()._batch(run, batch, index, stepping)
            if self._failure:  # and the step itself is sound
                self._fall(self._failure)
            return outputs
        for static, tensor in zip(graph.inputs, _tensors(batch), strict=True):
            static.copy_(tensor)
        if self._twin is None:
            self._step(run, lambda: self._evaluated(run, graph), index)
        else:
            run.add_loss(self._evaluated(run, graph))
            run.count_step(run.optimizers[0])
            run.global_step += 1
        return None

    def _evaluated(self, run: LocalRun, graph: _Graph) -> Tensor:
        """Replay a graph for the present batch; return the loss."""
        if graph.grads:
            self.flat.vector  # noqa: B018  # moves parameters back that an optimizer has moved
        graph.replay()
        for parameter, gradient in zip(self.flat.parameters, graph.grads, strict=bool(graph.grads)):
            parameter.grad = gradient
        for name, value, args, kwargs in graph.logged:
            run.log(name, value, *args, **kwargs)
        run.has_gradient = True
        return graph.loss.clone()

    def _find(self, run: LocalRun, batch: Any) -> _Graph | None:
        """Find the graph for a batch, or capture it if such batches come often."""
        self._failure = ""
        if self._begins and self._is_changed():
            self._forget()
            if self._captures >= MOST:
                self._fall(f"{type(self.module).__name__} changes between clients")
                return None
        self._begins = False
        tensors = _tensors(batch)
        if not tensors or any(type(each) is not Tensor or each.device != self.device for each in tensors):
            self._fall(f"a batch is not a list or tuple of tensors on {self.device}")
            return None
        form = (type(batch), *((each.shape, each.stride(), each.dtype) for each in tensors))
        if form in self._graphs:
            return self._graphs[form]
        self._calls[form] += 1
        if self._calls[form] < OFTEN or self._captures >= MOST:
            return None
        self._captures += 1
        try:
            self._graphs[form] = self._captured(run, type(batch), [each.clone() for each in tensors])
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            name = type(self.module).__name__
            self._failure = reason if isinstance(error, Obstacle) else f"a step of {name} is not captured: {reason}"
        return self._graphs.get(form)

    def _fall(self, reason: str) -> None:
        """Train as usual from now on, and say why."""
        self._forget()
        self._fell, self._failure, self._twin = True, "", None
        self._tell(reason)

    # What a graph relies on

    def _forget(self) -> None:
        """Forget all graphs, and record the objects on which new graphs will rely."""
        self._graphs: dict[Hashable, _Graph] = {}
        self._capture = CAPTURES[self.device.type](self.device)
        parts = [vars(part) for part in self.module.modules() if not isinstance(part, Metric | MetricCollection)]
        self._dicts = [each for part in parts for each in (part, *(part[name] for name in REGISTRIES if name in part))]
        self._tensors = [*self.module.parameters(), *self.module.buffers()]
        self._objects, self._places = self._look()

    def _look(self) -> tuple[list[Any], list[Any]]:
        """Return the objects in the module's attributes and registries, and the addresses of parameters and buffers."""
        objects = list(chain.from_iterable(map(dict.values, self._dicts)))
        return objects, [(_place(each), each.requires_grad) for each in self._tensors]

    def _is_changed(self) -> bool:
        objects, places = self._look()
        return changed(objects, self._objects) or places != self._places

    # Capturing

    def _captured(self, run: LocalRun, kind: type, inputs: list[Tensor]) -> _Graph:
        """Capture the step of batches of one form, and compare a replay with the step; nothing else changes.

        Raises:
            Obstacle: the step has effects that a replay would leave out, or the replay gives another result.
        """
        batch, records = kind(inputs) if kind is not Tensor else inputs[0], _Records()

        def step() -> Tensor:
            records.calls.clear()
            self.flat.clear_gradient()
            outputs = self._forward(batch, NoIndex())  # type: ignore[arg-type]  # stands for any index
            if outputs is None:
                raise Obstacle(f"{type(self.module).__name__}.training_step returns no loss")
            loss = self.loss_of(outputs)
            loss.backward()  # type: ignore[no-untyped-call]
            if any(p.grad is not None and p.grad.is_sparse for p in self.flat.parameters):
                raise Obstacle(f"a gradient of {type(self.module).__name__} is sparse")
            if self._twin is not None:
                self._clip(self._twin)
                self._twin.step()
            return loss.detach()

        with isolated(self.device), run.logging_to(records):
            with self._undone() as state:
                self.trainer.asked.clear()
                expected = self._outcome(step)
                self._check(state, records)
            with self._undone():
                try:
                    loss, replay = self._capture(step)
                except Exception:
                    self._forget()  # after a capture that broke off, no other graph is safe
                    raise
                grads = [p.grad for p in self.flat.parameters] if self._twin is None else []
            graph = _Graph(inputs, loss, grads, list(records.calls), replay)
            with self._undone():
                found = self._outcome(lambda: self._evaluated(run, graph))
        run.has_gradient = False
        if not all(map(near, expected, found)):
            raise Obstacle(f"a replayed step of {type(self.module).__name__} gives another result")
        return graph

    @contextmanager
    def _undone(self) -> Iterator[ModuleState]:
        """Undo what local steps change, at the end of a ``with`` block."""
        state, live = ModuleState(self.module), [self.flat.vector, *self._velocities()]
        values = [each.clone() for each in live]
        try:
            yield state
        finally:
            self.flat.clear_gradient()
            torch._foreach_copy_(live, values)
            state.restore(failed=True)

    def _outcome(self, step: Step) -> list[Tensor]:
        """Take a step with fixed random numbers; return copies of the loss and of all that the step writes."""
        seed_globals(0, self.device)
        loss = step()
        grads = [] if self._twin is not None else [p.grad for p in self.flat.parameters if p.grad is not None]
        written = [loss, self.flat.vector, *grads, *self._velocities(), *self.module.buffers()]
        return [each.detach().clone() for each in written]

    def _check(self, state: ModuleState, records: _Records) -> None:
        """Refuse a step that has just had effects beside its tensors, which a replay would leave out."""
        name, drawn = type(self.module).__name__, host_states(self.device)
        known = [isinstance(value, Tensor) and value.device == self.device for _, value, *_ in records.calls]
        if numbers := [key for (key, *_), is_known in zip(records.calls, known, strict=True) if not is_known]:
            raise Obstacle(f"{name} logs {numbers[0]}, which is not a tensor on {self.device}")
        if self.trainer.asked:
            raise Obstacle(f"{name}.training_step asks for trainer.{min(self.trainer.asked)}")
        if state.is_changed() or state.has_records():
            raise Obstacle(f"{name}.training_step sets attributes of the module, or adds to its lists")
        seed_globals(0, self.device)
        if host_states(self.device) != drawn:
            raise Obstacle(f"{name}.training_step draws random numbers on the host")


def make_training(
    asked: bool | Literal["auto"],
    module: LightningModule,
    flat: FlatParameters,
    settings: LocalSettings,
    trainer: ClientTrainer,
    callbacks: Sequence[FederatedCallback],
) -> LocalTraining:
    """Make the local training of a fit, with graphs where the device has them and nothing forbids them.

    Args:
        asked: whether to use graphs; True warns where none are used.
        module: the LightningModule that trains, shared by all clients in turn.
        flat: the module's parameters as one vector.
        settings: the local work of every client in a round.
        trainer: the Trainer as the module sees it.
        callbacks: the run's federated callbacks.
    """

    def tell(reason: str) -> None:
        say = rank_zero_warn if asked is True else rank_zero_info
        say(f"local_graph: local steps are not replayed as graphs, since {reason}")

    device = flat.vector.device
    if asked and device.type in CAPTURES:
        graphed = GraphedTraining(module, flat, settings, trainer, callbacks)
        if (reason := graphed.obstacle(callbacks)) is None:
            graphed.begin(tell)
            return graphed
        tell(reason)
    elif asked is True:
        tell(f"they need a CUDA device, got {device.type}")
    return LocalTraining(module, flat, settings, trainer, callbacks)


def _tensors(batch: Any) -> list[Any]:
    """Return the tensors of a batch that is a tensor, or a plain list or tuple of tensors; none for other batches."""
    if type(batch) is Tensor:
        return [batch]
    return list(batch) if type(batch) in (TrainingBatch, list, tuple) else []


def _place(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided else 0
