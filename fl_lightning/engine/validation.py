"""Validation: treats the client module, within a round, as the Trainer's validation does between rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from functools import cached_property
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities import rank_zero_warn
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

Spare = tuple[nn.Module, str, Metric | MetricCollection]  # parent, name in the parent, copy of the metric


def _drop(*args: Any, **kwargs: Any) -> None:
    """Take what a module logs, and keep nothing."""


class Validation:
    """Treats a module, while clients train or the server aggregates, as the Trainer's validation does.

    Args:
        module: the client module.
        trainer: the run's Trainer.
    """

    def __init__(self, module: LightningModule, trainer: Trainer) -> None:
        self._module = module
        self._trainer = trainer
        self._stage: RunningStage | None = None  # of the Trainer, while this validation goes on
        self._elsewhere: dict[str, str] = {}  # hooks that log metrics of the Trainer's validation, by metric
        self._has_told = False

    @contextmanager
    def going_on(self, log: Callable[..., None] = _drop) -> Iterator[None]:
        """Put module and Trainer in validation inside a ``with`` block.

        Args:
            log: takes what the module logs, in place of ``self.log``; by default all is dropped.
        """
        usual, stage = self._module.log, self._stage
        self._stage = stage or self._trainer.state.stage
        self._module.log = log  # type: ignore[method-assign]
        try:
            with in_use(self._spares), evaluating(self._module), self._in_stage(RunningStage.VALIDATING):
                yield
        finally:
            self._stage = stage
            self._module.log = usual  # type: ignore[method-assign]

    def interrupted(self) -> AbstractContextManager[None]:
        """Put the Trainer back in its own stage inside a ``with`` block, for the round's own metrics."""
        return self._in_stage(self._stage or self._trainer.state.stage)

    @contextmanager
    def _in_stage(self, stage: RunningStage | None) -> Iterator[None]:
        state = self._trainer.state
        before = state.stage
        state.stage = stage
        try:
            yield
        finally:
            state.stage = before

    @cached_property
    def _spares(self) -> list[Spare]:
        return spare_metrics(self._module)

    def note_elsewhere(self, name: str, hook: str) -> None:
        """Note that a metric of the Trainer's validation is logged in another hook than ``validation_step``."""
        self._elsewhere[name] = hook

    def tell_elsewhere(self) -> None:
        """Say once which metrics an evaluation by ``validation_step`` alone leaves out."""
        if not self._elsewhere or self._has_told:
            return
        self._has_told = True
        name = type(self._module).__name__
        where = ", ".join(f"{metric} in {hook}" for metric, hook in self._elsewhere.items())
        rank_zero_warn(
            f"{name} logs {where}, which monitors leave out, as they evaluate by validation_step "
            "alone: log it there, a torchmetrics object itself in place of what it computes"
        )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode inside a ``with`` block; each submodule then returns to its former mode.

    >>> from torch import nn
    >>> from fl_lightning import evaluating
    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> with evaluating(network):
    ...     network.training
    False
    >>> network.training
    True
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def spare_metrics(module: nn.Module) -> list[Spare]:
    """Copy a module's torchmetrics objects; in the copies, metrics of a collection do not share states."""
    spares: list[Spare] = []
    memo: dict[int, Any] = {}  # of deepcopy: what several metrics share, their copies share, too
    for parent in module.modules():
        if isinstance(parent, Metric | MetricCollection):
            continue  # copied as a whole
        for name, part in parent._modules.items():
            if isinstance(part, Metric | MetricCollection):
                _detach(part, memo)
                spares.append((parent, name, deepcopy(part, memo)))
    for _, _, copy in spares:
        for part in copy.modules():
            if isinstance(part, MetricCollection):
                # On few examples, different metrics may look the same and be grouped.
                part._enable_compute_groups = False
    return spares


def _detach(part: nn.Module, memo: dict[int, Any]) -> None:
    """Let a deep copy hold values without graph in place of those with one, which deepcopy would refuse."""

    def note(value: Tensor) -> Tensor:
        if value.grad_fn is not None:
            memo[id(value)] = value.detach().clone()
        return value

    for metric in part.modules():
        apply_to_collection(vars(metric), Tensor, note)


@contextmanager
def in_use(spares: Sequence[Spare]) -> Iterator[None]:
    """Replace the original metrics, which may be in the middle of an epoch, by empty copies inside a ``with`` block."""
    originals = [getattr(parent, name) for parent, name, _ in spares]
    try:
        for parent, name, copy in spares:
            copy.reset()
            setattr(parent, name, copy)
        yield
    finally:
        for (parent, name, _), original in zip(spares, originals, strict=True):
            setattr(parent, name, original)
