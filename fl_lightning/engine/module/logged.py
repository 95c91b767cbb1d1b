"""Reduce the metrics that a module logs in several steps to one number each."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import prints

from fl_lightning.errors import ConfigurationError

# In torchmetrics' warnings that it returns 0. A class without positives has no weight in a weighted mean.
UNDEFINED = ("should be meaningless", "recall is undefined")
WEIGHTLESS = "No positive samples"
REDUCTIONS = {"mean": "mean", "avg": "mean", "sum": "sum", "min": "min", "max": "max"}


@dataclass
class _Entry:
    """The values logged under one name, with their weights."""

    reduction: str
    forked: bool
    shown: dict[str, bool]
    values: list[Any] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def reduce(self) -> float:
        if isinstance(self.values[-1], Metric):
            return _compute(self.values[-1])
        values = list(map(float, self.values))  # a few numbers: faster than tensors
        if self.reduction != "mean":
            return float(getattr(torch.tensor(values, dtype=torch.float64), self.reduction)())
        weights = [weight / self.weights[0] for weight in self.weights]  # so that equal weights are 1 each
        return float(sum(map(operator.mul, values, weights)) / sum(weights))

    def last(self) -> float:
        value = self.values[-1]
        return _compute(value) if isinstance(value, Metric) else float(value)


class MetricLog:
    """Collects the metrics that a module logs, and reduces each to one number, as Lightning does over an epoch.

    A mean weighs each value by the examples in its batch. A torchmetrics object collects all steps itself: its result
    on this device is taken (other devices train other clients), and the object is not reset.

    Args:
        training: whether the module trains: within a batch, values then count as logged on each step.
    """

    def __init__(self, training: bool = True) -> None:
        self._training = training
        self._entries: dict[str, _Entry] = {}

    def add(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        *_: Any,
        batch_size: int | None = None,
        in_batch: int | None = None,
        **__: Any,
    ) -> None:
        """Add a value, with the arguments of ``LightningModule.log``.

        Args:
            name: the metric's name.
            value: a number, a tensor of one element or a torchmetrics object.
            prog_bar: whether the progress display shows the round's metric.
            logger: whether the loggers get the round's metric; None for yes.
            on_step: as for Lightning; with ``on_epoch``, the metric is also named ``name_step`` and ``name_epoch``.
            on_epoch: as for Lightning.
            reduce_fx: the reduction over the steps: mean, sum, min or max.
            batch_size: the value's weight in a mean; by default the number of examples in the batch.
            in_batch: number of examples in the current batch, None outside of a batch.

        Raises:
            ConfigurationError: ``reduce_fx`` is another reduction.
        """
        entry = self._entries.get(name)
        if entry is None:
            if on_step is None:
                on_step = self._training and in_batch is not None
            if on_epoch is None:
                on_epoch = not self._training
            shown: dict[str, bool] = {}
            if prog_bar:
                shown["prog_bar"] = True
            if logger is not None:
                shown["logger"] = logger
            entry = self._entries[name] = _Entry(reduction_named(reduce_fx), bool(on_step and on_epoch), shown)
        entry.values.append(value.detach().clone() if isinstance(value, Tensor) else value)
        entry.weights.append(float(batch_size or in_batch or 1))

    def extend(self, name: str, values: Sequence[Any], weights: Sequence[float]) -> None:
        """Add more values of a metric that has been added, with their weights in a mean."""
        self._entries[name].values += values
        self._entries[name].weights += weights

    def collect(self) -> dict[str, float]:
        """Return the metrics by name, each reduced over the steps."""
        result = {}
        for name, entry in self._entries.items():
            result[name] = entry.reduce()
            if entry.forked:
                result |= {f"{name}_step": entry.last(), f"{name}_epoch": result[name]}
        return result

    def reductions(self) -> dict[str, str]:
        """Return the reductions by name, where they are not the mean."""
        reductions: dict[str, str] = {}
        for name, entry in self._entries.items():
            if entry.reduction == "mean":
                continue
            reductions[name] = entry.reduction
            if entry.forked:
                reductions[f"{name}_epoch"] = entry.reduction
        return reductions

    def shown(self) -> dict[str, dict[str, bool]]:
        """Return ``prog_bar`` and ``logger`` by name, where ``self.log`` was given them."""
        shown: dict[str, dict[str, bool]] = {}
        for name, entry in self._entries.items():
            if not entry.shown:
                continue
            shown[name] = entry.shown
            if entry.forked:
                shown[f"{name}_step"] = entry.shown
                shown[f"{name}_epoch"] = entry.shown
        return shown


def reduction_named(reduce_fx: Any) -> str:
    """Return the name of a reduction: "mean", "sum", "min" or "max", given the name or a function such as torch.sum."""
    name = getattr(reduce_fx, "__name__", reduce_fx)
    if name not in REDUCTIONS:
        raise ConfigurationError(f"expected self.log(…, reduce_fx=mean, sum, min or max), got {name}")
    return REDUCTIONS[name]


def _compute(metric: Metric) -> float:
    """Compute a metric on this device; nan where its examples lack a class, for which torchmetrics returns 0."""
    available = metric.distributed_available_fn
    rank = prints.rank_zero_only.rank  # type: ignore[attr-defined]  # that of this process
    metric.distributed_available_fn = bool  # bool() is False
    prints.rank_zero_only.rank = 0  # type: ignore[attr-defined]  # so that all ranks warn
    metric._computed = None  # a value that torchmetrics remembers comes without its warning
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = float(metric.compute())
    finally:
        metric.distributed_available_fn = available
        prints.rank_zero_only.rank = rank  # type: ignore[attr-defined]  # as above
    texts = [str(warning.message) for warning in caught]
    if getattr(metric, "average", None) == "weighted":
        texts = [text for text in texts if WEIGHTLESS not in text]
    if _lacks_class(metric) or any(words in text for text in texts for words in UNDEFINED):
        return math.nan
    if rank == 0:
        for warning in caught:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return value


def _lacks_class(metric: Any) -> bool:
    """Tell whether a curve at given thresholds, or an area below one, lacks a class; torchmetrics does not warn."""
    if getattr(metric, "thresholds", None) is None or not hasattr(metric, "confmat"):
        return False
    negatives, positives = metric.confmat[0].sum(-1).unbind(-1)  # scalars, or of each class (C,)
    average = getattr(metric, "average", None)
    if average == "micro":
        positives = positives.sum()
        negatives = negatives.sum()
    if average == "weighted" and positives.any():
        has_weight = positives > 0
        positives = positives[has_weight]
        negatives = negatives[has_weight]
    needs_negatives = "Precision" not in type(metric).__name__
    return not (positives.all() and (negatives.all() or not needs_negatives))


def examples_in(batch: Any) -> int:
    """Return the number of examples in a batch, or 1 if Lightning cannot tell the number."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a module that logs nothing need not know that its batches are ambiguous
            return extract_batch_size(batch)
    except MisconfigurationException:
        return 1
